-- needs: server
-- gives: NEVER NAMES_PER_BLOCK POOL_LIMITS pool_name_of pool_of name_at has_exit_rows find_exit need_exit save_exit
-- gives: session_version
-- Exits: their pools, and the state of an exit for all lanes. The state towards one lane: see rosters.
--
-- pools      pool → "1", or "0" for a removed pool
-- pool:NAME  a pool's limits, and the list of every exit that it ever had, each at its index for ever, from 0 on.
--            "b:" and number of a block → the names of its exits, each with a newline; "e:" and exit → index; size: how many;
--            marks: for a lane that begins (see rosters); present: how many of the exits are in the pool now. A removed pool
--            has no limits, its list stays. old_host_interval, old_host_cap: the limits before the last change.
--            offered: the exits that are in the pool only because workers offer them (see offer), each with a newline
-- offers     pool → the offers of workers to it (see offer)
-- turns:via  pool → how many lanes have begun with it: each begins with another exit
-- exits      exit → strikes, parked until, parkings, trial, holder, sessions (six doubles), the lane struck last
-- sessions   exit, or "cookies EXIT SITE" → the session kept for it
NEVER, NAMES_PER_BLOCK = math.huge, 32
POOL_LIMITS = {
  'interval', 'cap', 'host_interval', 'host_cap', 'exclusive', 'sticky', 'rotate', 'quarantine', 'max_quarantine', 'patience',
  'cost', 'cost_per_gb',
}

-- The name of the lane's pool, or nil.
function pool_name_of(lane_name)
  local _, last = string.find(lane_name, VIA, 1, true)
  return last and string.sub(lane_name, last + 1) or nil
end

local pools = {}

-- The pool of this name; `exists`: whether the crawl has it now.
function pool_of(name)
  local pool = pools[name]
  if pool then return pool end
  pool = read_fields('pool:' .. name, 'size', 'present', 'marks', 'offered', unpack(POOL_LIMITS))
  pool.name, pool.names, pool.exists, pool.interval_text = name, {}, pool.interval and true or false, pool.interval
  pool.size, pool.present, pool.marks = tonumber(pool.size) or 0, tonumber(pool.present) or 0, pool.marks or ''
  for i = 1, #POOL_LIMITS do pool[POOL_LIMITS[i]] = tonumber(pool[POOL_LIMITS[i]]) end
  pools[name] = pool
  return pool
end

-- The exit at an index; reads all names of its block.
function name_at(pool, index)
  local names = pool.names
  if not names[index] then
    local block = math.floor(index / NAMES_PER_BLOCK)
    local text, at, first = call('HGET', P .. 'pool:' .. pool.name, 'b:' .. block) or '', block * NAMES_PER_BLOCK, 1
    while first <= #text do
      local last = string.find(text, '\n', first, true)
      names[at], at, first = string.sub(text, first, last - 1), at + 1, last + 1
    end
  end
  return names[index]
end

-- Whether `exits` has any row: in most crawls it has none. Nil: not known yet; reading a lane's roster tells it.
has_exit_rows = nil
local ROW, ROW_SIZE, rows = '<dddddd', 48, {}

local function read_exit(value)
  local row = {struck_lane = string.sub(value, ROW_SIZE + 1)}
  row.strikes, row.parked_until, row.parkings, row.trial, row.holder, row.sessions = unpack_struct(ROW, value)
  return row
end

-- The exit's row, or nil.
function find_exit(exit)
  if has_exit_rows ~= false and rows[exit] == nil then
    local value = call('HGET', P .. 'exits', exit)
    rows[exit] = value and read_exit(value)
  end
  return rows[exit] or nil
end

function need_exit(exit)
  local row = find_exit(exit)
  if not row then
    row = {strikes = 0, parked_until = 0, parkings = 0, trial = 0, holder = 0, sessions = 0, struck_lane = ''}
    rows[exit], has_exit_rows = row, true
  end
  return row
end

function save_exit(exit)
  local row = rows[exit]
  call('HSET', P .. 'exits', exit,
    pack(ROW, row.strikes, row.parked_until, row.parkings, row.trial, row.holder, row.sessions) .. row.struck_lane)
end

-- The version of the session kept for an exit; 0: none.
function session_version(exit)
  local row = find_exit(exit)
  return row and row.sessions > 0 and call('HSTRLEN', P .. 'sessions', exit) > 0 and row.sessions or 0
end
