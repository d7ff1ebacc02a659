-- Using exits: which one a lane takes next, what a request through it does to it, and when the lane may start again.

local next_fresh
do
  local NAMES_AT_ONCE = 64

  -- The pool's exit at a place; its neighbours are read with it.
  local function name_at(pool, place)
    if not pool.names[place] then
      local first, places = place - place % NAMES_AT_ONCE, {}
      for step = first, math.min(first + NAMES_AT_ONCE, pool.size) - 1 do places[#places + 1] = 'p' .. step end
      for i, name in ipairs(call('HMGET', P .. 'pool:' .. pool.name, unpack(places))) do pool.names[first + i - 1] = name end
    end
    return pool.names[place]
  end

  -- The exit that the lane considers next, when it has not met all of its pool; nil otherwise.
  function next_fresh(lane, pool, state)
    lane.uses, lane.changed = lane.uses or {}, lane.changed or {}
    while state.introduced < pool.size do
      local exit = name_at(pool, (state.turn + state.introduced) % pool.size)
      -- As many as it has met: then not this one. Otherwise its pool has changed.
      if state.met == state.introduced or not find_use(lane, exit) then return exit end
      state.introduced = state.introduced + 1
    end
    return nil
  end
end

-- The exit that a host of a sticky pool keeps, while it is healthy.
local function stuck_use(lane, pool, state)
  if pool.sticky == 0 or state.stuck == '' or not is_in_pool(pool, state.stuck) then return nil end
  local use = find_use(lane, state.stuck)
  if not use or use.streak > 0 or (pool.rotate > 0 and now >= state.stuck_since + pool.rotate) then return nil end
  local row = find_exit(use.exit)
  return (not row or row.parked <= now) and use or nil
end

local pick_exit, start_exit
do
  local BUSY_SECONDS, MAX_BUSY, MAX_CANDIDATES = 0.25, 32, 256

  local function fresh_use(lane, pool, state)
    local exit = next_fresh(lane, pool, state)
    if not exit then return nil end
    local use = new_use(exit, state.met, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    state.introduced, state.met = state.introduced + 1, state.met + 1
    lane.uses[exit] = use
    keep_use(lane, use)
    return use
  end

  -- The exits that may be used in this call, the earliest first, those with room for one request more. At least so many, if
  -- there are as many.
  local function read_candidates(lane, latest, total)
    save_uses(lane)
    local busy, exits = lane.busy or {total = 0}, {}
    local limit = total + busy.total
    local members = call('ZRANGEBYSCORE', P .. 'due:' .. lane.name, '-inf', latest, 'LIMIT', 0, limit)
    for _, member in ipairs(members) do
      local exit = string.sub(member, 5)
      if not busy[exit] then exits[#exits + 1] = exit end
    end
    read_uses(lane, exits)
    local found = {first = 1, last = #exits, total = total, read = 1, are_all = #members < limit}
    for i, exit in ipairs(exits) do found[i] = lane.uses[exit] end
    lane.busy, lane.candidates = busy, found
    return found
  end

  local function comes_before(one, other)
    return one.next < other.next or (one.next == other.next and one.rank < other.rank)
  end

  -- The exit may be used again in this call, when it is free and in time. Most come in at the end.
  local function give_back(lane, pool, use, latest)
    local found = lane.candidates
    if not found or not is_free(pool, use) or use.next > latest then return end
    local place = found.last + 1
    while place > found.first and comes_before(use, found[place - 1]) do
      found[place] = found[place - 1]
      place = place - 1
    end
    found[place], found.last = use, found.last + 1
  end

  local function first_due(lane, latest, total)
    local found = lane.candidates or read_candidates(lane, latest, total)
    -- What was given back may come after those that were not read.
    if found.read > found.total and not found.are_all then
      found = read_candidates(lane, latest, math.min(2 * found.total, MAX_CANDIDATES))
    end
    if found.first > found.last then return nil end
    found.first, found.read = found.first + 1, found.read + 1
    return found[found.first - 1]
  end

  -- The exit that is due first, not later than `latest`; nil when there is none. So many are asked for in this call.
  function pick_exit(lane, pool, latest, total)
    local state = state_of(lane)
    lane.looks = true
    local stuck = stuck_use(lane, pool, state)
    if stuck then return is_free(pool, stuck) and stuck.next <= latest and stuck or nil end
    while true do
      local use = fresh_use(lane, pool, state) or first_due(lane, latest, total)
      if not use then return nil end
      local row = find_exit(use.exit)
      if row and row.parked > math.max(now, use.next) then
        use.next = row.parked
        keep_use(lane, use)
        give_back(lane, pool, use, latest)
      elseif row and row.holder ~= 0 then
        use.next = math.max(use.next, now + BUSY_SECONDS)
        keep_use(lane, use)
        lane.busy = lane.busy or {total = 0}
        lane.busy[use.exit], lane.busy.total = true, lane.busy.total + 1
        if lane.busy.total == MAX_BUSY then return nil end
      else
        if pool.sticky ~= 0 then state.stuck, state.stuck_since, lane.candidates = use.exit, now, nil end
        return use
      end
    end
  end

  -- A request goes out through the exit.
  function start_exit(lane, pool, use, at, terms)
    use.next, use.flight, use.requests = at + pool.interval, use.flight + 1, use.requests + 1
    keep_use(lane, use)
    give_back(lane, pool, use, terms.latest)
    local row = pool.exclusive ~= 0 and need_exit(use.exit) or find_exit(use.exit)
    if not row then return end
    if pool.exclusive ~= 0 then row.holder = terms.token end
    if row.strikes >= STRIKES then row.parked, row.trial = now + pool.quarantine, terms.token end
    if pool.exclusive ~= 0 or row.strikes >= STRIKES then save_exit(use.exit) end
  end
end

local end_exit
do
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

  local function change_ailing(lane, amount)
    local state = state_of(lane)
    state.ailing = state.ailing + amount
    lane.looks = true
  end

  local function judge(lane, pool, use, report, token)
    use.size, use.elapsed = use.size + report.size, use.elapsed + report.elapsed
    use[report.verdict] = use[report.verdict] + 1
    if report.verdict == 'ok' then
      if use.streak > 0 and use.next < NEVER then change_ailing(lane, -1) end
      use.streak = 0
      local row = find_exit(use.exit)
      if row and (row.strikes > 0 or row.parked > 0) then
        row.strikes, row.parkings, row.trial, row.struck, row.parked = 0, 0, 0, '', 0
        save_exit(use.exit)
      end
      return
    end
    if not pool then return end
    -- Many requests in flight when a host shuts an exit out are one reason to rest, not many.
    if use.streak == 0 or now >= use.rests then
      if use.streak == 0 and use.next < NEVER then change_ailing(lane, 1) end
      use.streak = use.streak + 1
      use.rests = now + rest_of(pool, use.streak)
      use.next = math.max(use.next, use.rests)
    end
    if report.verdict == 'failed' then strike(lane, pool, use.exit, token) end
  end

  -- A lease of the lane is over. The report says how the exit did; nil when nobody knows.
  function end_exit(lane, exit, token, report)
    local use, row, pool = find_use(lane, exit), find_exit(exit), find_pool(lane.via)
    if not use then return end
    use.flight = use.flight - 1
    if row and row.holder == token then
      row.holder = 0
      save_exit(exit)
    end
    if report and report.session then
      row = need_exit(exit)
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
    keep_use(lane, use)
    if not pool or pool.sticky ~= 0 then lane.looks = true end
  end
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
  keep_state(lane)
end

-- Write what changed of the lane's exits, and look again where that matters.
local function save_exits(lane)
  save_uses(lane)
  if lane.looks then refresh_exits(lane) end
end

-- Whether all exits of the lane were turned away or failed.
local function do_exits_rest(lane)
  local value = lane.via and find_pool(lane.via) and call('HGET', P .. 'via', lane.name)
  return value and read_state(value).starved > 0
end

-- Whether all exits of the lane rested for too long, or there are none.
local function has_lost_patience(lane, pool)
  local since = state_of(lane).starved
  lane.looks = true
  return not pool or (since > 0 and now >= since + pool.patience)
end

-- The version of what is kept for an exit, 0 when there is nothing.
local function session_version(exit)
  local row = find_exit(exit)
  return row and row.sessions > 0 and call('HSTRLEN', P .. 'sessions', exit) > 0 and row.sessions or 0
end

local function save_spent()
  if spent ~= 0 then call('HINCRBYFLOAT', P .. 'crawl', 'cost', format('%.17g', spent)) end
  crawl.cost, spent = crawl.cost + spent, 0
end

-- A crawl whose cost has reached its budget waits for somebody to raise it; one that has nothing left to do is finished.
local function pause_if_spent()
  if crawl.state ~= 'running' or crawl.max_cost == 0 or crawl.cost < crawl.max_cost then return end
  local left = 0
  for _, name in ipairs({'queued', 'delayed', 'leased'}) do
    left = left + (tonumber(call('HGET', P .. 'count', name)) or 0) + (counted[name] or 0)
  end
  if left > 0 then
    crawl.state = 'paused'
    call('HSET', P .. 'crawl', 'state', 'paused')
  end
end
