-- needs: crawl free_exits exit_use lane_rules other_lanes
-- gives: lanes lane_list is_ready find_lane need_lane leave_lane update_lane save_queues save_lanes unindex
-- gives: HTTP is_stage queue_key ready_key lane_of_queue has_room_for learn_kind queue_of waiting_of next_entries drop_entries
-- gives: keep
-- Lanes: read once per call, changed in Lua, written back once by save_lanes, which also keeps `ready` and `busy` in step.
--
-- lanes  lane → its record, seventeen doubles: age, next start, last start, blocked until, interval, base interval, cap, in
--        flight, known, opener's token, rules until, rules' version, sharing (APART, ALONE or SHARED), its turn, until when it
--        wants a start slot, until when its limits count, when an exit is free next; then the lane's roster
--        (see roster_record). One packed value: reading a field for each takes eight times as long. The record outlives the
--        queue: its next start is the host's politeness.
-- ready  age and lane → time from which it may start; only lanes with waiting tasks of the kind http, below their cap and without an
--        opening lease
-- ready:KIND  the same for tasks of another kind
-- busy   age and lane → −(waiting · 2^21 + in flight); only lanes with waiting tasks or requests in flight
-- rules  lane → its rules
-- whys   "r" and lane → why it rests or is slow; "p" and lane → why its own pace is not the crawl's. Shown only while it is true
-- q:LANE task → order (see tasks); tasks of the kind http
-- kq:KIND:LANE  the same for tasks of another kind
-- A lane has one pace for its tasks of all kinds. In a crawl with several kinds `lane.queues` has the number of waiting tasks, the
-- additions and the former state of each kind's queue; `lane.waiting` is their sum.
-- Members of `ready` and `busy` begin with the lane's age in eight bytes: among equals the older lane comes first.
local IN_FLIGHT_ROOM = 2097152
lanes, lane_list, keep = {}, {}, {}

HTTP = 'http'

-- Whether the lane is for fetched pages: it has no pace and needs no rules.
function is_stage(lane_name)
  return string.find(lane_name, STAGE, 1, true) ~= nil
end

function queue_key(lane_name, kind)
  return P .. (kind == HTTP and 'q:' or 'kq:' .. kind .. ':') .. lane_name
end

function ready_key(kind)
  return kind == HTTP and 'ready' or 'ready:' .. kind
end

-- The lane and the kind of a queue, from its name without the prefix.
function lane_of_queue(name)
  local kind, lane = string.match(name, '^kq:([^:]*):(.*)$')
  if kind then return lane, kind end
  return string.sub(name, 3), HTTP
end

-- twin: rules/lanes.py needs_opening
function lane_rules.needs_opening(lane)
  return crawl.needs_rules and lane.rules_until <= now and not is_stage(lane.name)
end

function is_ready(lane)
  return lane.waiting > 0 and lane.in_flight < lane.cap and lane.opener == 0
end

-- Read how many tasks of each kind wait.
local function read_queues(lane)
  local is_free = lane.in_flight < lane.cap and lane.opener == 0
  lane.queues = {[HTTP] = {kind = HTTP, waiting = lane.waiting, adds = {}, was_ready = is_ready(lane)}}
  for i = 1, #kind_names do
    local waiting = call('ZCARD', queue_key(lane.name, kind_names[i]))
    lane.waiting = lane.waiting + waiting
    lane.queues[kind_names[i]] = {kind = kind_names[i], waiting = waiting, adds = {}, was_ready = waiting > 0 and is_free}
  end
end

function has_room_for(kind)
  return not kind_names or is_kind[kind] or #kind_names + 1 < MAX_KINDS
end

-- Add this kind to the crawl.
function learn_kind(kind)
  if is_kind and is_kind[kind] then return end
  kind_names, is_kind = kind_names or {}, is_kind or {}
  kind_names[#kind_names + 1] = kind
  is_kind[kind] = true
  call('HSET', P .. 'crawl', 'kinds', table.concat(kind_names, ','))
  for i = 1, #lane_list do
    local lane = lane_list[i]
    if not lane.queues then
      lane.queues = {[HTTP] = {kind = HTTP, waiting = lane.waiting, adds = lane.adds, was_ready = lane.was_ready}}
    end
    lane.queues[kind] = {kind = kind, waiting = 0, adds = {}, was_ready = false}
  end
end

-- The queue for tasks of this kind; nil: http. An unknown kind is from a record that outlived the crawl's.
function queue_of(lane, kind)
  if kind then learn_kind(kind) end
  return lane.queues and lane.queues[kind or HTTP] or lane
end

-- How many tasks of these kinds wait in the lane; in a crawl with one kind: of http.
function waiting_of(lane, kinds)
  if not lane.queues then return kinds[1] == HTTP and lane.waiting or 0 end
  local waiting = 0
  for i = 1, #kinds do
    local queue = lane.queues[kinds[i]]
    if queue then waiting = waiting + queue.waiting end
  end
  return waiting
end

local function comes_first(one, other)
  return one.order < other.order
end

-- The lane's next tasks of these kinds, each followed by its order; and in a crawl with several kinds, at the index of each task, its
-- queue.
function next_entries(lane, kinds, total)
  if not lane.queues then return call('ZRANGE', P .. 'q:' .. lane.name, 0, total - 1, 'WITHSCORES') end
  local filled, merged, entries, queues = {}, {}, {}, {}
  for i = 1, #kinds do
    local queue = lane.queues[kinds[i]]
    if queue and queue.waiting > 0 then filled[#filled + 1] = kinds[i] end
  end
  for i = 1, #filled do
    local own, queue = call('ZRANGE', queue_key(lane.name, filled[i]), 0, total - 1, 'WITHSCORES'), lane.queues[filled[i]]
    for j = 1, #own, 2 do
      merged[#merged + 1] = {task = own[j], text = own[j + 1], order = tonumber(own[j + 1]), queue = queue}
    end
  end
  table.sort(merged, comes_first)
  for i = 1, math.min(total, #merged) do
    entries[2 * i - 1], entries[2 * i], queues[2 * i - 1] = merged[i].task, merged[i].text, merged[i].queue
  end
  return entries, queues
end

-- Remove the lane's first tasks from their queues: this many of http, or those leased from each queue.
function drop_entries(lane)
  if not lane.queues then
    if lane.lent and lane.lent > 0 then call('ZREMRANGEBYRANK', P .. 'q:' .. lane.name, 0, lane.lent - 1) end
    lane.lent = nil
    return
  end
  for kind, queue in pairs(lane.queues) do
    if queue.lent and queue.lent > 0 then call('ZREMRANGEBYRANK', queue_key(lane.name, kind), 0, queue.lent - 1) end
    queue.lent = nil
  end
end

local function adopt_lane(lane)
  lane.adds, lane.via = {}, pool_name_of(lane.name)
  if kind_names then read_queues(lane) end
  lane.was_ready, lane.was_due = is_ready(lane), math.max(lane.next_start, lane.exits_next)
  lane.was_waiting, lane.was_in_flight = lane.waiting, lane.in_flight
  lanes[lane.name] = lane
  lane_list[#lane_list + 1] = lane
  return lane
end

-- The lane of this name, or nil.
function find_lane(name)
  local lane = lanes[name]
  if lane then return lane end
  local value = call('HGET', P .. 'lanes', name)
  if not value then return nil end
  local age, next_start, last_start, blocked_until, interval, base_interval, cap, in_flight, known, opener, rules_until, version,
    sharing, turn, wants_until, heeded_until, exits_next = unpack_struct(LANE_RECORD, value)
  -- All fields at once, also those of adopt_lane: a table that grows field by field costs much more.
  lane = {
    name = name, value = value, member = string.sub(value, 1, 8) .. name, waiting = call('ZCARD', P .. 'q:' .. name), age = age,
    next_start = next_start, last_start = last_start, blocked_until = blocked_until, interval = interval,
    base_interval = base_interval, cap = cap, in_flight = in_flight, known = known, opener = opener, rules_until = rules_until,
    version = version, sharing = sharing, turn = turn, wants_until = wants_until, heeded_until = heeded_until,
    exits_next = exits_next, adds = nil, via = nil, was_ready = nil, was_due = nil, was_waiting = nil, was_in_flight = nil,
    lent = nil,
  }
  -- No valid time, so the record is damaged: the error makes the caller replace it. Else the lane would never start.
  assert(lane.next_start < LATEST_TIME, 'a lane record that cannot be read')
  return adopt_lane(lane)
end

local function packed(lane)
  local roster = lane.roster
  if roster then
    local flights, more = pack_roster(roster, lane.in_flight)
    return pack(LANE_RECORD .. ROSTER, lane.age, lane.next_start, lane.last_start, lane.blocked_until, lane.interval,
      lane.base_interval, lane.cap, lane.in_flight, lane.known, lane.opener, lane.rules_until, lane.version, lane.sharing,
      lane.turn, lane.wants_until, lane.heeded_until, lane.exits_next, roster.size, roster.next_index, #flights) .. flights .. more
  end
  local value = pack(LANE_RECORD, lane.age, lane.next_start, lane.last_start, lane.blocked_until, lane.interval, lane.base_interval,
    lane.cap, lane.in_flight, lane.known, lane.opener, lane.rules_until, lane.version, lane.sharing, lane.turn, lane.wants_until,
    lane.heeded_until, lane.exits_next)
  return #lane.value <= RECORD_SIZE and value or value .. string.sub(lane.value, RECORD_SIZE + 1)
end

-- Remove the lane from the indexes.
function unindex(lane)
  lane.was_ready, lane.was_waiting = false, -1
  for _, queue in pairs(lane.queues or {}) do queue.was_ready = false end
end

-- The lane of this name; a new one starts with the pace of the crawl or its pool, and is written at once: without it, no script would
-- find its queue. Ages are of the server's clock, also in tests that set the time.
function need_lane(name)
  local lane = find_lane(name)
  if lane then return lane end
  local newest = tonumber(call('HGET', P .. 'count', 'age') or 0)
  local age = math.max(server_seconds * 1000000 + server_microseconds, newest + 1)
  local via = pool_name_of(name)
  local interval, cap = lane_rules.first_pace(crawl.interval, crawl.cap, via and pool_of(via))
  if is_stage(name) then interval, cap = 0, STAGE_CAP end
  local sharing = crawl.share and host_rules.first_sharing(name, false) or APART
  -- First: after a crash, others may find no lane here, but must find this crawl if it has one.
  if sharing == ALONE and host_names.join(name) then sharing = SHARED end
  lane = {
    name = name, member = pack('>d', age) .. name, age = age, next_start = now, last_start = 0, blocked_until = 0,
    interval = interval, base_interval = interval, cap = cap, in_flight = 0, known = 0,
    opener = 0, rules_until = 0, version = 0, exits_next = 0, sharing = sharing, turn = 0, wants_until = 0, heeded_until = 0, waiting = call('ZCARD', P .. 'q:' .. name), value = '',
  }
  local learnt = sharing == SHARED and crawl.fastest > 0 and other_lanes.learnt(name)
  if learnt then lane.interval = math.max(learnt, crawl.fastest) end
  lane.value = packed(lane)
  call('HSET', P .. 'count', 'age', format('%.0f', age))
  call('HSET', P .. 'lanes', name, lane.value)
  adopt_lane(lane)
  -- A queue whose record was lost: neither index has it under this age.
  if lane.waiting > 0 then unindex(lane) end
  return lane
end

-- A lease of the lane has ended. The request of an opening lease counts as a start.
function leave_lane(lane, held)
  if not held.has_landed then lane.in_flight = lane.in_flight - 1 end
  if lane.opener == held.token then
    lane.opener = 0
    lane_rules.take_slot(lane, math.max(lane.last_start, now))
  end
end

-- Keep why a lane rests or is slow ("r" and lane), or has a pace of its own ("p" and lane).
function keep.why(field, why)
  if why ~= '' then call('HSET', P .. 'whys', field, why) else call('HDEL', P .. 'whys', field) end
end

-- Store the lane's rules, with the pace that they ask for (0: none); other crawls take over both.
function keep.rules(lane, rules, delay, why)
  call('HSET', P .. 'rules', lane.name, rules)
  if delay > 0 then call('HSET', P .. 'shared', 'd' .. lane.name, pack('>d', delay) .. why) else call('HDEL', P .. 'shared', 'd' .. lane.name) end
end

-- Eight values from ARGV[at]: interval, if_interval, base_interval, cap, rest_seconds, rules, rules_seconds, started; "": not given.
-- Rules begin with "=". `why` is for people. `learnt`: the interval that a search has learnt; nil or "": none.
function update_lane(lane, at, why, learnt)
  local interval, if_interval, base_interval, cap, rest_seconds, rules, rules_seconds, started = unpack(ARGV, at, at + 7)
  local blocked_until, former_interval = lane.blocked_until, lane.interval
  lane_rules.update_pace(lane, tonumber(interval), tonumber(if_interval), tonumber(base_interval), tonumber(cap),
    tonumber(rest_seconds), tonumber(started))
  if lane_rules.takes_why(lane, blocked_until, former_interval, base_interval ~= '') then keep.why('r' .. lane.name, why) end
  if base_interval ~= '' then keep.why('p' .. lane.name, why) end
  if rules ~= '' then
    local delay = tonumber(base_interval) or 0
    keep.rules(lane, string.sub(rules, 2), delay, delay > 0 and why or '')
    lane.rules_until = now + tonumber(rules_seconds)
    lane.version = lane.version + 1
  end
  if learnt and learnt ~= '' then
    call('HSET', P .. 'shared', 'l' .. lane.name, pack('>dd', tonumber(learnt), now + LEARNT_SECONDS))
  end
end

-- Collect the changes to an index of lanes that may start: the lane with the time of its next start, or its removal.
local function index_start(lane, ready, is_due, was_ready, due)
  if is_due and not (was_ready and lane.was_due == due) then
    ready.added[#ready.added + 1] = due
    ready.added[#ready.added + 1] = lane.member
  elseif was_ready and not is_due then
    ready.removed[#ready.removed + 1] = lane.member
  end
end

-- The same for tasks of every kind.
local function index_kinds(lane, changes, due)
  local is_free = lane.in_flight < lane.cap and lane.opener == 0
  for kind, queue in pairs(lane.queues) do
    local ready = changes[kind]
    if not ready then
      ready = {added = {}, removed = {}}
      changes[kind] = ready
    end
    index_start(lane, ready, is_free and queue.waiting > 0, queue.was_ready, due)
  end
end

local function index_lane(lane, changes, busy)
  local due = math.max(lane.next_start, lane.exits_next)
  if lane.queues then index_kinds(lane, changes, due) else index_start(lane, changes[HTTP], is_ready(lane), lane.was_ready, due) end
  if lane.waiting ~= lane.was_waiting or lane.in_flight ~= lane.was_in_flight then
    if lane.waiting > 0 or lane.in_flight > 0 then
      busy.added[#busy.added + 1] = -(lane.waiting * IN_FLIGHT_ROOM + lane.in_flight)
      busy.added[#busy.added + 1] = lane.member
    else
      busy.removed[#busy.removed + 1] = lane.member
    end
  end
end

-- One command for all lanes: a call costs as much as the change itself.
local function save_index(name, changes)
  write_in_parts('ZADD', P .. name, changes.added)
  write_in_parts('ZREM', P .. name, changes.removed)
end

-- Queue the tasks that were added to lanes. It must write first:
-- after a crash a task may be in two places, never in no place.
function save_queues()
  for i = 1, #lane_list do
    local lane = lane_list[i]
    if lane.queues then
      for kind, queue in pairs(lane.queues) do
        if #queue.adds > 0 then call('ZADD', queue_key(lane.name, kind), unpack(queue.adds)) end
        queue.adds = {}
      end
    elseif #lane.adds > 0 then
      call('ZADD', P .. 'q:' .. lane.name, unpack(lane.adds))
      lane.adds = {}
    end
  end
end

function save_lanes()
  local changed, ready, busy = {}, {[HTTP] = {added = {}, removed = {}}}, {added = {}, removed = {}}
  for i = 1, #lane_list do
    local lane = lane_list[i]
    if lane.exits_changed then refresh_exits(lane) end
    if lane.roster then save_exits(lane) end
    local value = packed(lane)
    if value ~= lane.value then
      changed[#changed + 1] = lane.name
      changed[#changed + 1] = value
    end
    index_lane(lane, ready, busy)
  end
  for kind, changes in pairs(ready) do save_index(ready_key(kind), changes) end
  save_index('busy', busy)
  write_in_parts('HSET', P .. 'lanes', changed)
  if spent ~= 0 then save_spent() end
end
