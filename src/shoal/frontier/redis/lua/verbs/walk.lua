-- include: crawl exits rosters using judging lanes
-- walk: change lanes, a bounded number per call.
--
-- ARGV[3]  "resume": a lane with waiting tasks queues up as of a time; "pace": lanes take over the crawl's new pace;
--          "pools": lanes that go via a pool take over its new exits
-- ARGV[4]  where to go on, "0" to begin with
-- ARGV[5]  resume: the time; pace: the crawl's old interval
-- ARGV[6]  pace: the new interval
-- ARGV[7]  pace: the old cap
-- ARGV[8]  pace: the new cap
-- Reply    {"ok", where to go on, "0" at the end}
local MAX_LANES, MAX_USES = 200, 4000

-- A lane of a large pool is much work.
if ARGV[3] == 'pools' then
  for _, name in ipairs(call('HKEYS', P .. 'pools')) do
    MAX_LANES = math.max(1, math.min(MAX_LANES, math.floor(MAX_USES / math.max(1, roll_of(name).size))))
  end
end

-- A lane whose pace was the crawl's or the pool's own follows it.
local function follow(lane, old_interval, interval, old_cap, cap)
  if interval ~= old_interval and lane.base == old_interval then
    if lane.interval == lane.base then lane.interval = interval end
    lane.base = interval
    lane.next = math.max(lane.last + interval, lane.blocked, math.min(lane.next, now))
  end
  if lane.cap == old_cap then lane.cap = cap end
end

local function take_over(lane)
  local pool = roll_of(lane.via)
  if pool.exists then
    local old = call('HMGET', P .. 'pool:' .. pool.name, 'old_host_interval', 'old_host_cap')
    if old[1] then follow(lane, tonumber(old[1]), pool.host_interval, tonumber(old[2]), pool.host_cap) end
  end
  if has_begun(lane) then review_roster(lane) end
end

local page = call('HSCAN', P .. 'lanes', ARGV[4], 'COUNT', MAX_LANES)
for i = 1, #page[2], 2 do
  local lane = need_lane(page[2][i])
  if ARGV[3] == 'resume' then
    if lane.waiting > 0 then lane.next = math.max(lane.next, tonumber(ARGV[5])) end
  elseif ARGV[3] == 'pools' then
    if lane.via then take_over(lane) end
  elseif not lane.via then
    follow(lane, tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]))
  end
end
save_lanes()
return {'ok', page[1]}
