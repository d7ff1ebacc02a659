-- include: crawl exits lanes
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
local MAX_LANES = ARGV[3] == 'pools' and 20 or 200

-- Exits that stay keep what is known of them, and the lane looks at all of them anew.
local function take_over(lane)
  local state, pool, page = state_of(lane), find_pool(lane.via), call('HGETALL', P .. 'uses:' .. lane.name)
  state.introduced, state.ailing = 0, 0
  for i = 1, #page, 2 do
    local use = read_use(page[i], page[i + 1])
    if not pool or not is_in_pool(pool, use.exit) then
      use.next = NEVER
    elseif use.next == NEVER then
      use.next = now
    end
    if use.streak > 0 and use.next < NEVER then state.ailing = state.ailing + 1 end
    save_use(lane, use)
  end
  save_state(lane)
  lane.exits, lane.looks = 0, false
end

local page = call('HSCAN', P .. 'lanes', ARGV[4], 'COUNT', MAX_LANES)
for i = 1, #page[2], 2 do
  local lane = need_lane(page[2][i])
  if ARGV[3] == 'resume' then
    if lane.waiting > 0 then lane.next = math.max(lane.next, tonumber(ARGV[5])) end
  elseif ARGV[3] == 'pools' then
    if lane.via and call('HEXISTS', P .. 'via', lane.name) == 1 then take_over(lane) end
  elseif not lane.via then
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
