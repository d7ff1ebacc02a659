-- Exits: which one a lane that goes via a pool uses next, and what a request through it does to it.
--
-- pools      the names of the pools → 1
-- pool:NAME  a pool's limits, its size, and its exits: "p" and place → exit, "e" and exit → place
-- turns:via  pool → how many lanes have begun with it: each begins with another of its exits
-- via        lane → turn, exits introduced, starved since, stuck since, ailing exits (five doubles), the exit it is stuck to
-- uses:LANE  exit → rank, next start, rests until, in flight, streak, requests, ok, blocked, failed, size, elapsed, cost:
--            twelve doubles. An exit that left its pool has an infinite next start.
-- due:LANE   rank (4 bytes) and exit → next start; only exits with room for one request more
-- exits      exit → strikes, parked until, parkings, trial, holder, sessions (six doubles), the lane struck last
-- sessions   exit → what is kept for it
local STRIKES, BUSY_SECONDS, MAX_BUSY, NEVER, VIA = 3, 0.25, 32, math.huge, ' via '
local USE, EXIT, STATE = '>dddddddddddd', '>dddddd', '>ddddd'
local POOL = {
  'size', 'interval', 'cap', 'host_interval', 'host_cap', 'exclusive', 'sticky', 'rotate', 'quarantine', 'max_quarantine',
  'patience', 'cost', 'cost_per_gb',
}
local pools, exit_rows, spent = {}, {}, 0

-- The name of the pool that a lane goes via, or nil.
local function pool_name_of(lane_name)
  local _, last = string.find(lane_name, VIA, 1, true)
  return last and string.sub(lane_name, last + 1) or nil
end

-- The pool of this name, or nil.
local function find_pool(name)
  if pools[name] == nil then
    local values = call('HMGET', P .. 'pool:' .. name, unpack(POOL))
    local pool = values[1] and {name = name} or false
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

local function read_use(exit, value)
  local use = {exit = exit}
  use.rank, use.next, use.rests, use.flight, use.streak, use.requests, use.ok, use.blocked, use.failed, use.size,
    use.elapsed, use.cost = unpack_struct(USE, value)
  return use
end

local function find_use(lane, exit)
  local value = call('HGET', P .. 'uses:' .. lane.name, exit)
  return value and read_use(exit, value) or nil
end

local function save_use(lane, use)
  call('HSET', P .. 'uses:' .. lane.name, use.exit, pack(USE, use.rank, use.next, use.rests, use.flight, use.streak,
    use.requests, use.ok, use.blocked, use.failed, use.size, use.elapsed, use.cost))
  local pool, member = find_pool(lane.via), pack('>I4', use.rank) .. use.exit
  if pool and use.next < NEVER and is_free(pool, use) then
    call('ZADD', P .. 'due:' .. lane.name, use.next, member)
  else
    call('ZREM', P .. 'due:' .. lane.name, member)
  end
  lane.looks = true
end

local function read_exit(value)
  local row = {}
  row.strikes, row.parked, row.parkings, row.trial, row.holder, row.sessions = unpack_struct(EXIT, value)
  row.struck = string.sub(value, 49)
  return row
end

-- What holds for the exit whatever the lane.
local function need_exit(exit)
  if not exit_rows[exit] then
    local value = call('HGET', P .. 'exits', exit)
    exit_rows[exit] = value and read_exit(value)
      or {strikes = 0, parked = 0, parkings = 0, trial = 0, holder = 0, sessions = 0, struck = ''}
  end
  return exit_rows[exit]
end

local function save_exit(exit)
  local row = exit_rows[exit]
  call('HSET', P .. 'exits', exit,
    pack(EXIT, row.strikes, row.parked, row.parkings, row.trial, row.holder, row.sessions) .. row.struck)
end

-- What the lane remembers of its exits.
local function state_of(lane)
  if lane.state then return lane.state end
  local value = call('HGET', P .. 'via', lane.name)
  local state = {introduced = 0, starved = 0, stuck_since = 0, ailing = 0, stuck = ''}
  if value then
    state.turn, state.introduced, state.starved, state.stuck_since, state.ailing = unpack_struct(STATE, value)
    state.stuck = string.sub(value, 41)
  else
    state.turn = call('HINCRBY', P .. 'turns:via', lane.via, 1) - 1
  end
  lane.state, lane.state_value = state, value
  return state
end

local function save_state(lane)
  local state = lane.state
  local value = pack(STATE, state.turn, state.introduced, state.starved, state.stuck_since, state.ailing) .. state.stuck
  if value ~= lane.state_value then call('HSET', P .. 'via', lane.name, value) end
  lane.state_value = value
end

-- The exit that the lane considers next, when it has not met all of its pool; nil otherwise.
local function next_fresh(lane, pool, state)
  while state.introduced < pool.size do
    local exit = call('HGET', P .. 'pool:' .. pool.name, 'p' .. (state.turn + state.introduced) % pool.size)
    if call('HEXISTS', P .. 'uses:' .. lane.name, exit) == 0 then return exit end
    state.introduced = state.introduced + 1
  end
  return nil
end

-- The exit that a host of a sticky pool keeps, while it is healthy.
local function stuck_use(lane, pool, state)
  if pool.sticky == 0 or state.stuck == '' or not is_in_pool(pool, state.stuck) then return nil end
  local use = find_use(lane, state.stuck)
  if not use or use.streak > 0 or (pool.rotate > 0 and now >= state.stuck_since + pool.rotate) then return nil end
  return need_exit(use.exit).parked <= now and use or nil
end

local function fresh_use(lane, pool, state)
  local exit = next_fresh(lane, pool, state)
  if not exit then return nil end
  state.introduced = state.introduced + 1
  local use = {
    exit = exit, rank = call('HLEN', P .. 'uses:' .. lane.name), next = 0, rests = 0, flight = 0, streak = 0, requests = 0,
    ok = 0, blocked = 0, failed = 0, size = 0, elapsed = 0, cost = 0,
  }
  save_use(lane, use)
  return use
end

-- The free exit with the earliest time, not one of the busy ones.
local function first_due(lane, latest, busy)
  local members = call('ZRANGEBYSCORE', P .. 'due:' .. lane.name, '-inf', latest, 'LIMIT', 0, busy.total + 1)
  for _, member in ipairs(members) do
    local exit = string.sub(member, 5)
    if not busy[exit] then return find_use(lane, exit) end
  end
  return nil
end

-- The exit that is due first, not later than `latest`; nil when there is none.
local function pick_exit(lane, pool, latest)
  local state = state_of(lane)
  lane.looks = true
  local stuck = stuck_use(lane, pool, state)
  if stuck then return is_free(pool, stuck) and stuck.next <= latest and stuck or nil end
  local busy = {total = 0}
  while busy.total < MAX_BUSY do
    local use = fresh_use(lane, pool, state) or first_due(lane, latest, busy)
    if not use then return nil end
    local row = need_exit(use.exit)
    if row.parked > math.max(now, use.next) then
      use.next = row.parked
      save_use(lane, use)
    elseif row.holder ~= 0 then
      use.next = math.max(use.next, now + BUSY_SECONDS)
      save_use(lane, use)
      busy[use.exit], busy.total = true, busy.total + 1
    else
      if pool.sticky ~= 0 then state.stuck, state.stuck_since = use.exit, now end
      return use
    end
  end
  return nil
end

-- A request goes out through the exit.
local function start_exit(lane, pool, use, at, token)
  use.next, use.flight, use.requests = at + pool.interval, use.flight + 1, use.requests + 1
  save_use(lane, use)
  local row = need_exit(use.exit)
  if pool.exclusive ~= 0 then row.holder = token end
  if row.strikes >= STRIKES then row.parked, row.trial = now + pool.quarantine, token end
  if pool.exclusive ~= 0 or row.strikes >= STRIKES then save_exit(use.exit) end
end

-- How long an exit rests the so-manieth time in a row.
local function rest_of(pool, times)
  return math.min(pool.quarantine * 2 ^ math.min(times - 1, 60), pool.max_quarantine)
end

local function strike(lane, pool, exit, token)
  local row = need_exit(exit)
  if row.struck ~= lane.name then row.strikes, row.struck = row.strikes + 1, lane.name end
  if row.strikes >= STRIKES and (row.parked <= now or row.trial == token) then
    row.parkings = row.parkings + 1
    row.parked, row.trial = now + rest_of(pool, row.parkings), 0
  end
  save_exit(exit)
end

local function judge(lane, pool, use, report, token)
  local state = state_of(lane)
  use.size, use.elapsed = use.size + report.size, use.elapsed + report.elapsed
  use[report.verdict] = use[report.verdict] + 1
  if report.verdict == 'ok' then
    if use.streak > 0 and use.next < NEVER then state.ailing = state.ailing - 1 end
    use.streak = 0
    local row = need_exit(use.exit)
    if row.strikes > 0 or row.parked > 0 then
      row.strikes, row.parkings, row.trial, row.struck, row.parked = 0, 0, 0, '', 0
      save_exit(use.exit)
    end
    return
  end
  if not pool then return end
  -- Many requests in flight when a host shuts an exit out are one reason to rest, not many.
  if use.streak == 0 or now >= use.rests then
    if use.streak == 0 and use.next < NEVER then state.ailing = state.ailing + 1 end
    use.streak = use.streak + 1
    use.rests = now + rest_of(pool, use.streak)
    use.next = math.max(use.next, use.rests)
  end
  if report.verdict == 'failed' then strike(lane, pool, use.exit, token) end
end

-- A lease of the lane is over. The report says how the exit did; nil when nobody knows.
local function end_exit(lane, exit, token, report)
  local use, row, pool = find_use(lane, exit), need_exit(exit), find_pool(lane.via)
  if not use then return end
  use.flight = use.flight - 1
  if row.holder == token then
    row.holder = 0
    save_exit(exit)
  end
  if report and report.session then
    row.sessions = row.sessions + 1
    save_exit(exit)
    call('HSET', P .. 'sessions', exit, report.session)
  end
  if report and report.verdict == 'unused' then
    use.requests = use.requests - 1
  else
    if pool then
      local cost = pool.cost + (report and report.size / 1e9 * pool.cost_per_gb or 0)
      use.cost, spent = use.cost + cost, spent + cost
    end
    if report then judge(lane, pool, use, report, token) end
  end
  save_use(lane, use)
end

-- Say on the lane when an exit is free next.
local function refresh_exits(lane)
  local pool, state = find_pool(lane.via), state_of(lane)
  if pool then
    local stuck = stuck_use(lane, pool, state)
    if stuck then
      lane.exits = is_free(pool, stuck) and stuck.next or NEVER
    else
      local fresh = next_fresh(lane, pool, state)
      local first = not fresh and call('ZRANGE', P .. 'due:' .. lane.name, 0, 0, 'WITHSCORES') or {}
      lane.exits = fresh and 0 or tonumber(first[2]) or NEVER
      if fresh or state.ailing < pool.size then
        state.starved = 0
      else
        if state.starved == 0 then state.starved = now end
        lane.exits = math.min(lane.exits, state.starved + pool.patience)
      end
    end
  end
  save_state(lane)
end

-- Whether all exits of the lane rested for too long, or there are none.
local function has_lost_patience(lane, pool)
  local since = state_of(lane).starved
  lane.looks = true
  return not pool or (since > 0 and now >= since + pool.patience)
end

-- The version of what is kept for an exit, 0 when there is nothing.
local function session_version(exit)
  local row = need_exit(exit)
  return row.sessions > 0 and call('HSTRLEN', P .. 'sessions', exit) > 0 and row.sessions or 0
end

local function save_spent()
  if spent ~= 0 then call('HINCRBYFLOAT', P .. 'crawl', 'cost', format('%.17g', spent)) end
  crawl.cost, spent = crawl.cost + spent, 0
end

-- A crawl whose cost has reached its budget waits for somebody to raise it.
local function pause_if_spent()
  if crawl.state == 'running' and crawl.max_cost > 0 and crawl.cost >= crawl.max_cost then
    crawl.state = 'paused'
    call('HSET', P .. 'crawl', 'state', 'paused')
  end
end
