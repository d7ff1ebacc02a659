-- needs: lanes hosts
-- pace: change a lane's pace, rest it, or give it rules; creates the lane if need be.
--
-- ARGV[3]     lane
-- ARGV[4…11]  the update (see update_lane)
-- ARGV[12]    why, if that is said
-- ARGV[13]    what a search has learnt, if it has
-- Reply       {"ok"}
local lane, FIRST_VALUE = need_lane(ARGV[3]), 4
update_lane(lane, FIRST_VALUE, ARGV[12] or '', ARGV[13])
hosts.limits(lane)
save_lanes()
return {'ok'}
