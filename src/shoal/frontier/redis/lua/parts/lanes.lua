-- Lanes: read once per call, changed in Lua, written back once by save_lanes, which also arms them.
--
-- lanes  lane → its record, thirteen doubles: age, next start, last start, blocked until, interval, base interval, cap, in
--        flight, known, opener's token, rules until, rules' version, when an exit is free next; behind it the lane's roster
--        (see rosters). One packed value: a field for each would cost eight times as long to read. The record outlives the
--        queue: its next start is the host's politeness.
-- ready  age and lane → time from which it may start; only lanes with waiting tasks, free cap and nobody opening them
-- busy   age and lane → −(waiting · 2^21 + in flight); only lanes with any of both
-- Members of both begin with the lane's age in eight bytes: among equals the older lane comes first.
local IN_FLIGHT_ROOM, RECORD = 2097152, '>ddddddddddddd'
local lanes, lane_list = {}, {}

local function is_ready(lane)
  return lane.waiting > 0 and lane.flight < lane.cap and lane.opener == 0
end

local function adopt_lane(lane)
  lane.adds, lane.via = {}, pool_name_of(lane.name)
  lane.was_ready, lane.was_next = is_ready(lane), math.max(lane.next, lane.exits)
  lane.was_waiting, lane.was_flight = lane.waiting, lane.flight
  lanes[lane.name] = lane
  lane_list[#lane_list + 1] = lane
  return lane
end

-- The lane of this name, or nil.
local function find_lane(name)
  local lane = lanes[name]
  if lane then return lane end
  local value = call('HGET', P .. 'lanes', name)
  if not value then return nil end
  lane = {name = name, value = value, member = string.sub(value, 1, 8) .. name, waiting = call('ZCARD', P .. 'q:' .. name)}
  lane.age, lane.next, lane.last, lane.blocked, lane.interval, lane.base, lane.cap, lane.flight, lane.known, lane.opener,
    lane.rules_until, lane.version, lane.exits = unpack_struct(RECORD, value)
  return adopt_lane(lane)
end

local function packed(lane)
  local roster = lane.roster
  if roster then
    local flights, more = pack_roster(roster, lane.flight)
    return pack(RECORD .. ROSTER, lane.age, lane.next, lane.last, lane.blocked, lane.interval, lane.base, lane.cap, lane.flight,
      lane.known, lane.opener, lane.rules_until, lane.version, lane.exits, roster.size, roster.place, #flights) .. flights .. more
  end
  local value = pack(RECORD, lane.age, lane.next, lane.last, lane.blocked, lane.interval, lane.base, lane.cap, lane.flight,
    lane.known, lane.opener, lane.rules_until, lane.version, lane.exits)
  return #lane.value <= RECORD_SIZE and value or value .. string.sub(lane.value, RECORD_SIZE + 1)
end

-- The lane of this name; a new one starts with the crawl's pace. Ages are the server's, whatever time a test sets.
-- A new lane is written at once: nobody would find a queue without it.
local function need_lane(name)
  local lane = find_lane(name)
  if lane then return lane end
  local newest = tonumber(call('HGET', P .. 'count', 'age') or 0)
  local age = math.max(server_time[1] * 1000000 + server_time[2], newest + 1)
  local via = pool_name_of(name)
  local pool = via and roll_of(via)
  if pool and not pool.exists then pool = nil end
  local interval = pool and pool.host_interval or crawl.interval
  lane = {
    name = name, member = pack('>d', age) .. name, age = age, next = now, last = 0, blocked = 0, interval = interval,
    base = interval, cap = pool and pool.host_cap or crawl.cap, flight = 0, known = 0, opener = 0, rules_until = 0,
    version = 0, exits = 0, waiting = 0, value = '',
  }
  lane.value = packed(lane)
  call('HSET', P .. 'count', 'age', format('%.0f', age))
  call('HSET', P .. 'lanes', name, lane.value)
  return adopt_lane(lane)
end

-- Use the slot at this time; the next one is an interval later.
local function start_lane(lane, at)
  -- Without a pace a start that its exit puts off holds up no other exit.
  lane.last = lane.interval > 0 and at or math.min(at, math.max(now, lane.next))
  lane.next = math.max(lane.last + lane.interval, lane.blocked)
end

-- A lease of the lane is over; the request that opened it was a start.
local function leave_lane(lane, token)
  lane.flight = lane.flight - 1
  if lane.opener == token then
    lane.opener = 0
    start_lane(lane, math.max(lane.last, now))
  end
end

-- Seven values from ARGV[at]: interval, if_interval, base_interval, cap, rest_seconds, rules, rules_seconds.
-- "" means: not given. Rules begin with "=".
local function update_lane(lane, at)
  local interval, guard, base, cap, rest, rules = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]),
    tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), ARGV[at + 5]
  if interval and (not guard or math.abs(guard - lane.interval) <= 1e-9) then
    lane.interval = interval
    lane.next = math.max(lane.last + interval, lane.blocked, math.min(lane.next, now))
  end
  if base then lane.base = base end
  if cap then lane.cap = cap end
  if rest then
    lane.blocked = math.max(lane.blocked, now + rest)
    lane.next = math.max(lane.next, lane.blocked)
  end
  if rules ~= '' then
    call('HSET', P .. 'rules', lane.name, string.sub(rules, 2))
    lane.rules_until = now + tonumber(ARGV[at + 6])
    lane.version = lane.version + 1
  end
end

-- Put the lane into `ready` with its stored next start, or take it out; keep `busy` in step.
local function wake(lane)
  local ready, at = is_ready(lane), math.max(lane.next, lane.exits)
  if ready and not (lane.was_ready and lane.was_next == at) then
    call('ZADD', P .. 'ready', at, lane.member)
  elseif lane.was_ready and not ready then
    call('ZREM', P .. 'ready', lane.member)
  end
  if lane.waiting ~= lane.was_waiting or lane.flight ~= lane.was_flight then
    if lane.waiting > 0 or lane.flight > 0 then
      call('ZADD', P .. 'busy', -(lane.waiting * IN_FLIGHT_ROOM + lane.flight), lane.member)
    else
      call('ZREM', P .. 'busy', lane.member)
    end
  end
end

-- Queue what was added to the lanes. First of all writes: a task may be in two places after a crash, never in none.
local function save_queues()
  for i = 1, #lane_list do
    local lane = lane_list[i]
    if #lane.adds > 0 then
      call('ZADD', P .. 'q:' .. lane.name, unpack(lane.adds))
      lane.adds = {}
    end
  end
end

local function save_lanes()
  local changed = {}
  for i = 1, #lane_list do
    local lane = lane_list[i]
    if lane.looks then refresh_exits(lane) end
    if lane.roster then save_exits(lane) end
    local value = packed(lane)
    if value ~= lane.value then
      changed[#changed + 1] = lane.name
      changed[#changed + 1] = value
    end
    wake(lane)
  end
  for i = 1, #changed, 1000 do call('HSET', P .. 'lanes', unpack(changed, i, math.min(i + 999, #changed))) end
  if spent ~= 0 then save_spent() end
end
