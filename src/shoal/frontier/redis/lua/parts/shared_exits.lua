-- needs: rosters other_lanes
-- gives: shared_exits
-- lazy
-- An exit keeps its interval and its cap towards a host over all crawls that share it. Exits are known by name: the lists of two
-- crawls need not be alike.
shared_exits = {}

local function block_of(prefix, pool, block)
  return call('HGET', prefix .. 'pool:' .. pool.name, 'b:' .. block) or ''
end

-- Where our list has the exit that is at this index in the list of the other crawl; nil: nowhere. `alike` has the blocks of names that
-- were looked at, and whether both lists have the same there.
local function own_index(prefix, pool, index, alike)
  local block = math.floor(index / NAMES_PER_BLOCK)
  if not alike[block] then
    local theirs, names = block_of(prefix, pool, block), {}
    for name in string.gmatch(theirs, '([^\n]*)\n') do names[#names + 1] = name end
    alike[block] = {is_same = theirs == block_of(P, pool, block), names = names}
  end
  if alike[block].is_same then return index end
  local name = alike[block].names[index % NAMES_PER_BLOCK + 1]
  return name and tonumber(call('HGET', P .. 'pool:' .. pool.name, 'e:' .. name) or nil)
end

local function is_in_use(roster, index)
  local mark = mark_at(roster, index)
  return mark == HEALTHY or mark == ON_PROBATION
end

-- The pool with the strictest limits; a table of its own for this lane.
local function stricter(pool, interval, cap)
  if interval <= pool.interval and cap >= pool.cap then return pool end
  local strict = {}
  for name, value in pairs(pool) do strict[name] = value end
  strict.interval, strict.cap = math.max(pool.interval, interval), math.min(pool.cap, cap)
  strict.interval_text = exact(strict.interval)
  return strict
end

local function heed_roster(lane, other, elsewhere)
  local roster, theirs, alike = lane.roster, read_roster(other.value, RECORD_SIZE + 1), {}
  for index, flight in pairs(theirs.flights) do
    local own = own_index(other.prefix, lane.pool, index, alike)
    if own then elsewhere[own] = (elsewhere[own] or 0) + flight end
  end
  for index, start in pairs(theirs.next_starts) do
    local own, due = is_in_use(theirs, index) and own_index(other.prefix, lane.pool, index, alike), other_lanes.in_our_time(other, start)
    if own and is_in_use(roster, own) and due > math.max(roster.next_starts[own] or 0, now) then
      set_next_start(roster, own, due)
      lane.exits_changed = true
    end
  end
end

-- What the other crawls leave of the exits of a lane that goes via a pool.
function shared_exits.heed(lane)
  local roster, pool, elsewhere = roster_of(lane), lane.pool, {}
  if not pool.exists then return end
  local interval, cap = pool.interval, pool.cap
  for _, other in ipairs(lane.others) do
    if host_rules.is_heeded(other) then
      local limits = call('HMGET', other.prefix .. 'pool:' .. pool.name, 'interval', 'cap')
      interval, cap = math.max(interval, tonumber(limits[1]) or 0), math.min(cap, tonumber(limits[2]) or cap)
    end
    if #other.value > RECORD_SIZE and not other.is_gone then heed_roster(lane, other, elsewhere) end
  end
  if next(elsewhere) then roster.elsewhere = elsewhere end
  lane.pool = stricter(pool, interval, cap)
end
