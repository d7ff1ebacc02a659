-- needs: lanes hosts
-- reserve: take the next start slot of a lane, and of one of its exits, for a request that is not a lease's first.
--
-- ARGV[3]  lane
-- ARGV[4]  exit
-- ARGV[5]  seconds by which the request has missed its slot; 0: it had none
-- Reply    {"ok", seconds to wait, time of the crawl}
local lane, exit = need_lane(ARGV[3]), ARGV[4]
local missed = tonumber(ARGV[5])
local start, limits = lane_rules.reserved_start(lane, missed), hosts.limits(lane, missed > 0)
if limits then start = math.max(start, limits.not_before) end
if lane.via then
  if limits then shared_exits.heed(lane) end
  local roster, pool = roster_of(lane), lane.pool
  local index = pool.exists and tonumber(call('HGET', P .. 'pool:' .. pool.name, 'e:' .. exit))
  -- An exit that rests has no slots.
  if index and mark_at(roster, index) == HEALTHY then
    local next_start = roster.next_starts[index] or 0
    local slots = {next_start = next_start, last_start = next_start - pool.interval, interval = pool.interval, blocked_until = 0}
    start = math.max(start, lane_rules.reserved_start(slots, missed))
    set_next_start(roster, index, start + pool.interval)
    lane.exits_changed = true
  end
end
lane_rules.take_slot(lane, start, limits and limits.interval)
if crawl.share and missed == 0 then lane.turn = lane.turn + 1 / crawl.share end
save_lanes()
return {'ok', format('%.17g', start - now), time_of_crawl()}
