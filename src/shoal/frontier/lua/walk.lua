-- include: crawl lanes
-- walk: change lanes, a bounded number per call.
--
-- ARGV[3]  "resume": a lane with waiting tasks queues up as of a time; "pace": lanes take over the crawl's new pace
-- ARGV[4]  where to go on, "0" to begin with
-- ARGV[5]  resume: the time; pace: the crawl's old interval
-- ARGV[6]  pace: the new interval
-- ARGV[7]  pace: the old cap
-- ARGV[8]  pace: the new cap
-- Reply    {"ok", where to go on, "0" at the end}
local MAX_LANES = 200
local page = call('HSCAN', P .. 'lanes', ARGV[4], 'COUNT', MAX_LANES)
for i = 1, #page[2], 2 do
  local lane = need_lane(page[2][i])
  if ARGV[3] == 'resume' then
    if lane.waiting > 0 then lane.next = math.max(lane.next, tonumber(ARGV[5])) end
  else
    local old_interval, interval, old_cap, cap = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
    if interval ~= old_interval and lane.base == old_interval then
      if lane.interval == lane.base then lane.interval = interval end
      lane.base = interval
      lane.next = math.max(lane.last + interval, lane.blocked, math.min(lane.next, now))
    end
    if lane.cap == old_cap then lane.cap = cap end
  end
end
save_lanes()
return {'ok', page[1]}
