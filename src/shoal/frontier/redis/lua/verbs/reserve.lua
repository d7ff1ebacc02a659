-- include: crawl exits rosters using judging lanes
-- reserve: take the next start slot of a lane, and of one of its exits, for a request that is not a lease's first.
--
-- ARGV[3]  lane
-- ARGV[4]  exit
-- Reply    {"ok", seconds to wait}
local lane = need_lane(ARGV[3])
local start = math.max(now, lane.next)
if lane.via then
  local roster, pool = roster_of(lane), lane.roll
  local place = pool.exists and tonumber(call('HGET', P .. 'pool:' .. pool.name, 'e:' .. ARGV[4]))
  -- An exit that rests has no slots.
  if place and mark_at(roster, place) == MARK.RING then
    start = math.max(start, roster.nexts[place] or 0)
    set_next(roster, place, start + pool.interval)
    lane.looks = true
  end
end
start_lane(lane, start)
save_lanes()
return {'ok', format('%.17g', start - now)}
