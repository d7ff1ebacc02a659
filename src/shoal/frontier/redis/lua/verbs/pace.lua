-- include: crawl exits rosters using judging lanes
-- pace: change a lane's pace, rest it, or give it rules; creates the lane if need be.
--
-- ARGV[3]     lane
-- ARGV[4…10]  the update (see update_lane)
-- Reply       {"ok"}
update_lane(need_lane(ARGV[3]), 4)
save_lanes()
return {'ok'}
