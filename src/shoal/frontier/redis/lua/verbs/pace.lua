-- needs: lanes hosts
-- pace: change a lane's pace, rest it, or set its rules; creates the lane if needed.
--
-- ARGV[3]     lane
-- ARGV[4…11]  the update (see update_lane)
-- ARGV[12]    the reason, if given
-- ARGV[13]    the interval that a search has learnt, if any
-- Reply       {"ok"}
local lane, FIRST_VALUE = need_lane(ARGV[3]), 4
update_lane(lane, FIRST_VALUE, ARGV[12] or '', ARGV[13])
hosts.limits(lane)
save_lanes()
return {'ok'}
