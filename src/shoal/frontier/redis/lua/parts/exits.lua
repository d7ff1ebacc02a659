-- Exits: the pools they are in, and what holds for one whatever the lane. What a lane knows of its exits: see rosters.
--
-- pools      pool → "1", or "0" when it is gone
-- pool:NAME  a pool's limits, and its roll, which has every exit that the pool ever had, each at its place for good, from 0 on:
--            "b:" and number of a block → the names at its places, a newline behind each; "e:" and exit → place; size: how many;
--            marks: those of a lane that begins (see rosters); present: how many of them are in the pool now. A pool that is
--            gone has no limits, its roll stays.
-- turns:via  pool → how many lanes have begun with it: each begins with another of its exits
-- exits      exit → strikes, parked until, parkings, trial, holder, sessions (six doubles), the lane struck last
-- sessions   exit → what is kept for it
local STRIKES, NEVER, VIA, MAX_VALUES, NAMES_PER_BLOCK = 3, math.huge, ' via ', 1000, 32
-- A script has room for two hundred local names, hence `do … end` here and there.
local POOL = {
  'interval', 'cap', 'host_interval', 'host_cap', 'exclusive', 'sticky', 'rotate', 'quarantine', 'max_quarantine', 'patience',
  'cost', 'cost_per_gb',
}

-- The name of the pool that a lane goes via, or nil.
local function pool_name_of(lane_name)
  local _, last = string.find(lane_name, VIA, 1, true)
  return last and string.sub(lane_name, last + 1) or nil
end

local function write_in_parts(command, key, values)
  for i = 1, #values, MAX_VALUES do call(command, key, unpack(values, i, math.min(i + MAX_VALUES - 1, #values))) end
end

local roll_of, name_at
do
  local rolls = {}

  -- The pool of this name with its roll; `exists` says whether it is there.
  function roll_of(name)
    local roll = rolls[name]
    if roll then return roll end
    local values = call('HMGET', P .. 'pool:' .. name, 'size', 'present', 'marks', unpack(POOL))
    roll = {
      name = name, names = {}, exists = values[4] and true or false, size = tonumber(values[1]) or 0,
      present = tonumber(values[2]) or 0, marks = values[3] or '', interval_text = values[4],
    }
    for i, field in ipairs(POOL) do roll[field] = tonumber(values[i + 3]) end
    rolls[name] = roll
    return roll
  end

  -- The exit at a place; the names of its block are read with it.
  function name_at(roll, place)
    local names = roll.names
    if not names[place] then
      local block = math.floor(place / NAMES_PER_BLOCK)
      local text, at, first = call('HGET', P .. 'pool:' .. roll.name, 'b:' .. block) or '', block * NAMES_PER_BLOCK, 1
      while first <= #text do
        local last = string.find(text, '\n', first, true)
        names[at], at, first = string.sub(text, first, last - 1), at + 1, last + 1
      end
    end
    return names[place]
  end
end

-- Whether there is an exit of which there is anything to say whatever the lane: most crawls have none. Nil as long as nobody
-- looked; who has a lane's roster may rely on it.
local has_rows

local find_exit, need_exit, save_exit
do
  local EXIT, rows = '<dddddd', {}

  local function read_exit(value)
    local row = {}
    row.strikes, row.parked, row.parkings, row.trial, row.holder, row.sessions = unpack_struct(EXIT, value)
    row.struck = string.sub(value, 49)
    return row
  end

  -- What holds for the exit whatever the lane, or nil.
  function find_exit(exit)
    if has_rows ~= false and rows[exit] == nil then
      local value = call('HGET', P .. 'exits', exit)
      rows[exit] = value and read_exit(value)
    end
    return rows[exit] or nil
  end

  function need_exit(exit)
    local row = find_exit(exit)
    if not row then
      row = {strikes = 0, parked = 0, parkings = 0, trial = 0, holder = 0, sessions = 0, struck = ''}
      rows[exit], has_rows = row, true
    end
    return row
  end

  function save_exit(exit)
    local row = rows[exit]
    call('HSET', P .. 'exits', exit,
      pack(EXIT, row.strikes, row.parked, row.parkings, row.trial, row.holder, row.sessions) .. row.struck)
  end
end

-- The version of what is kept for an exit, 0 when there is nothing.
local function session_version(exit)
  local row = find_exit(exit)
  return row and row.sessions > 0 and call('HSTRLEN', P .. 'sessions', exit) > 0 and row.sessions or 0
end
