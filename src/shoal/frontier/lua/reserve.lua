-- include: crawl lanes
-- reserve: take a lane's next start slot for a request that is not a task.
--
-- ARGV[3]  lane
-- Reply    {"ok", seconds to wait}
local lane = need_lane(ARGV[3])
local start = math.max(now, lane.next)
start_lane(lane, start)
save_lanes()
return {'ok', format('%.17g', start - now)}
