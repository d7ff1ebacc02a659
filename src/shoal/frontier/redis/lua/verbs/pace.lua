-- needs: lanes
-- pace: change a lane's pace, rest it, or give it rules; creates the lane if need be.
--
-- ARGV[3]     lane
-- ARGV[4…11]  the update (see update_lane)
-- Reply       {"ok"}
local lane_name, FIRST_VALUE = ARGV[3], 4
update_lane(need_lane(lane_name), FIRST_VALUE)
save_lanes()
return {'ok'}
