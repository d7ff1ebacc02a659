-- Exits: which one a lane that goes via a pool uses next, and what a request through it does to it.
--
-- pools      the names of the pools → 1
-- pool:NAME  a pool's limits, its size, and its exits: "p" and place → exit, "e" and exit → place
-- turns:via  pool → how many lanes have begun with it: each begins with another of its exits
-- via        lane → turn, exits introduced, starved since, stuck since, ailing exits, exits met (six doubles), the exit it
--            is stuck to
-- uses:LANE  exit → rank, next start, rests until, in flight, streak, requests, ok, blocked, failed, size, elapsed, cost:
--            twelve doubles. An exit that left its pool has an infinite next start.
-- due:LANE   rank (4 bytes) and exit → next start; only exits with room for one request more
-- exits      exit → strikes, parked until, parkings, trial, holder, sessions (six doubles), the lane struck last
-- sessions   exit → what is kept for it
local STRIKES, NEVER, VIA = 3, math.huge, ' via '
local MAX_VALUES = 1000
-- The byte order of most machines: nothing has to be turned around. A script has room for two hundred names, hence the blocks.
local USE, STATE = '<dddddddddddd', '<dddddd'
local POOL = {
  'size', 'interval', 'cap', 'host_interval', 'host_cap', 'exclusive', 'sticky', 'rotate', 'quarantine', 'max_quarantine',
  'patience', 'cost', 'cost_per_gb',
}
local pools, spent = {}, 0

-- The name of the pool that a lane goes via, or nil.
local function pool_name_of(lane_name)
  local _, last = string.find(lane_name, VIA, 1, true)
  return last and string.sub(lane_name, last + 1) or nil
end

-- The pool of this name, or nil.
local function find_pool(name)
  if pools[name] == nil then
    local values = call('HMGET', P .. 'pool:' .. name, unpack(POOL))
    local pool = values[1] and {name = name, names = {}} or false
    if pool then
      for i, field in ipairs(POOL) do pool[field] = tonumber(values[i]) end
    end
    pools[name] = pool
  end
  return pools[name] or nil
end

local function is_in_pool(pool, exit)
  return call('HEXISTS', P .. 'pool:' .. pool.name, 'e' .. exit) == 1
end

-- An exit that was ill is tried with a single request.
local function is_free(pool, use)
  return use.flight < (use.streak > 0 and 1 or pool.cap)
end

-- All fields at once: a table that grows field by field costs three times as long.
local function new_use(exit, rank, next, rests, flight, streak, requests, ok, blocked, failed, size, elapsed, cost)
  return {
    exit = exit, rank = rank, next = next, rests = rests, flight = flight, streak = streak, requests = requests, ok = ok,
    blocked = blocked, failed = failed, size = size, elapsed = elapsed, cost = cost, was_due = false, has_changed = false,
  }
end

local function read_use(exit, value)
  return new_use(exit, unpack_struct(USE, value))
end

-- The time at which `due` shows the exit; nil where it does not.
local function due_of(lane, use)
  local pool = pools[lane.via] or find_pool(lane.via)
  if not pool or use.next == NEVER or use.flight >= (use.streak > 0 and 1 or pool.cap) then return nil end
  return use.next
end

-- Uses are read once per call, changed in Lua and written back with their lane by save_uses.
local function adopt_use(lane, use)
  use.was_due = due_of(lane, use)
  lane.uses[use.exit] = use
  return use
end

-- Read what is known of these exits, as far as it was not read before.
local function read_uses(lane, exits)
  lane.uses, lane.changed = lane.uses or {}, lane.changed or {}
  local missing = {}
  for _, exit in ipairs(exits) do
    if not lane.uses[exit] then missing[#missing + 1] = exit end
  end
  if #missing == 0 then return end
  for i, value in ipairs(call('HMGET', P .. 'uses:' .. lane.name, unpack(missing))) do
    if value then adopt_use(lane, read_use(missing[i], value)) end
  end
end

local function find_use(lane, exit)
  read_uses(lane, {exit})
  return lane.uses[exit]
end

local function keep_use(lane, use)
  if use.has_changed then return end
  use.has_changed = true
  lane.changed[#lane.changed + 1] = use
end

local function write_in_parts(command, key, values)
  for i = 1, #values, MAX_VALUES do call(command, key, unpack(values, i, math.min(i + MAX_VALUES - 1, #values))) end
end

-- Write the lane's changed uses. When that may change its next start, the lane has to look: not while there is an exit that it
-- never considered (0).
local function save_uses(lane)
  local changed = lane.changed
  if not changed or #changed == 0 then return end
  local values, due, gone = {}, {}, {}
  for i, use in ipairs(changed) do
    values[2 * i - 1] = use.exit
    values[2 * i] = pack(USE, use.rank, use.next, use.rests, use.flight, use.streak, use.requests, use.ok, use.blocked,
      use.failed, use.size, use.elapsed, use.cost)
    local at = due_of(lane, use)
    if at ~= use.was_due then
      local member = pack('>I4', use.rank) .. use.exit
      if at then
        due[#due + 1] = at
        due[#due + 1] = member
      else
        gone[#gone + 1] = member
      end
      use.was_due = at
    end
    use.has_changed = false
  end
  lane.changed = {}
  if lane.exits < 0 or (lane.exits > 0 and #due + #gone > 0) then lane.looks = true end
  write_in_parts('HSET', P .. 'uses:' .. lane.name, values)
  write_in_parts('ZADD', P .. 'due:' .. lane.name, due)
  write_in_parts('ZREM', P .. 'due:' .. lane.name, gone)
end

local find_exit, need_exit, save_exit
do
  local EXIT, rows, has_rows = '<dddddd', {}

  local function read_exit(value)
    local row = {}
    row.strikes, row.parked, row.parkings, row.trial, row.holder, row.sessions = unpack_struct(EXIT, value)
    row.struck = string.sub(value, 49)
    return row
  end

  -- What holds for the exit whatever the lane, or nil: most crawls have no exit of which there is anything to say.
  function find_exit(exit)
    if has_rows == nil then has_rows = call('EXISTS', P .. 'exits') == 1 end
    if has_rows and rows[exit] == nil then
      local value = call('HGET', P .. 'exits', exit)
      rows[exit] = value and read_exit(value)
    end
    return rows[exit] or nil
  end

  function need_exit(exit)
    local row = find_exit(exit)
    if not row then
      row = {strikes = 0, parked = 0, parkings = 0, trial = 0, holder = 0, sessions = 0, struck = ''}
      rows[exit] = row
    end
    return row
  end

  function save_exit(exit)
    local row = rows[exit]
    call('HSET', P .. 'exits', exit,
      pack(EXIT, row.strikes, row.parked, row.parkings, row.trial, row.holder, row.sessions) .. row.struck)
  end
end

local function read_state(value)
  local turn, introduced, starved, stuck_since, ailing, met = unpack_struct(STATE, value)
  return {
    turn = turn, introduced = introduced, starved = starved, stuck_since = stuck_since, ailing = ailing, met = met,
    stuck = string.sub(value, 49),
  }
end

-- What the lane remembers of its exits.
local function state_of(lane)
  if lane.state then return lane.state end
  local value = call('HGET', P .. 'via', lane.name)
  if value then
    lane.state = read_state(value)
  else
    local turn = call('HINCRBY', P .. 'turns:via', lane.via, 1) - 1
    lane.state = {turn = turn, introduced = 0, starved = 0, stuck_since = 0, ailing = 0, met = 0, stuck = ''}
  end
  lane.state_value = value
  return lane.state
end

-- Read what these lanes remember at once.
local function read_states(some_lanes)
  local pooled, names = {}, {}
  for _, lane in ipairs(some_lanes) do
    if lane.via and not lane.state then
      pooled[#pooled + 1], names[#names + 1] = lane, lane.name
    end
  end
  if #names == 0 then return end
  for i, value in ipairs(call('HMGET', P .. 'via', unpack(names))) do
    if value then pooled[i].state, pooled[i].state_value = read_state(value), value end
  end
end

-- What the lanes remember is written at once, by save_states.
local changed_states = {}

local function keep_state(lane)
  local state = lane.state
  local value = pack(STATE, state.turn, state.introduced, state.starved, state.stuck_since, state.ailing, state.met)
    .. state.stuck
  if value ~= lane.state_value then
    changed_states[#changed_states + 1] = lane.name
    changed_states[#changed_states + 1] = value
  end
  lane.state_value = value
end

local function save_states()
  write_in_parts('HSET', P .. 'via', changed_states)
  changed_states = {}
end

-- Look at all exits that the lane has met: one that left the pool is not used any more, one that came back is. The lane considers
-- its pool from the start.
local function review_uses(lane, change)
  local state, pool, page = state_of(lane), find_pool(lane.via), call('HGETALL', P .. 'uses:' .. lane.name)
  state.introduced, state.ailing, state.met = 0, 0, #page / 2
  lane.uses, lane.changed = {}, {}
  for i = 1, #page, 2 do
    local use = read_use(page[i], page[i + 1])
    if change then change(use) end
    if not pool or not is_in_pool(pool, use.exit) then
      use.next = NEVER
    elseif use.next == NEVER then
      use.next = now
    end
    if use.streak > 0 and use.next < NEVER then state.ailing = state.ailing + 1 end
    lane.uses[use.exit] = use
    keep_use(lane, use)
  end
end
