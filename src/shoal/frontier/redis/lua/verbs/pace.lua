-- needs: lanes
-- pace: change a lane's pace, rest it, or give it rules; creates the lane if need be.
--
-- ARGV[3]     lane
-- ARGV[4…11]  the update (see update_lane)
-- ARGV[12]    why, if that is said
-- Reply       {"ok"}
local lane_name, FIRST_VALUE, why = ARGV[3], 4, ARGV[12] or ''
update_lane(need_lane(lane_name), FIRST_VALUE, why)
save_lanes()
return {'ok'}
