-- include: crawl exits using lanes
-- reserve: take the next start slot of a lane, and of one of its exits, for a request that is not a lease's first.
--
-- ARGV[3]  lane
-- ARGV[4]  exit
-- Reply    {"ok", seconds to wait}
local lane = need_lane(ARGV[3])
local start = math.max(now, lane.next)
if lane.via then
  state_of(lane)
  local pool, use = find_pool(lane.via), find_use(lane, ARGV[4])
  if pool and use then
    start = math.max(start, use.next)
    use.next = start + pool.interval
    keep_use(lane, use)
  end
  lane.looks = true
end
start_lane(lane, start)
save_lanes()
return {'ok', format('%.17g', start - now)}
