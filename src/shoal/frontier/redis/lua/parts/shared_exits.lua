-- needs: rosters other_lanes
-- gives: shared_exits
-- lazy
-- An exit keeps its interval and its cap towards a host over all crawls that share the host. Exits are matched by name: the lists of
-- two crawls may differ.
shared_exits = {}

local function block_of(prefix, pool, block)
  return call('HGET', prefix .. 'pool:' .. pool.name, 'b:' .. block) or ''
end

-- The index in this crawl's list of the exit at this index in the other crawl's list; nil: it has none. `alike`: by block of names,
-- whether both lists are equal there.
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

-- The pool with the strictest limits, as a table of this lane.
local function stricter(pool, interval, cap)
  if interval <= pool.interval and cap >= pool.cap then return pool end
  local strict = {}
  for name, value in pairs(pool) do strict[name] = value end
  strict.interval, strict.cap = math.max(pool.interval, interval), math.min(pool.cap, cap)
  strict.interval_text = exact(strict.interval)
  return strict
end

-- By index of this crawl's exits: requests in flight of other crawls; and the next starts after now that they have noted.
local function read_rosters(lane)
  local elsewhere, due_there = {}, {}
  for _, other in ipairs(lane.others) do
    if #other.value > RECORD_SIZE and not other.is_gone then
      local theirs, alike = read_roster(other.value, RECORD_SIZE + 1), {}
      for index, flight in pairs(theirs.flights) do
        local own = own_index(other.prefix, lane.pool, index, alike)
        if own then elsewhere[own] = (elsewhere[own] or 0) + flight end
      end
      for index, start in pairs(theirs.next_starts) do
        local due = other_lanes.in_our_time(other, start)
        local own = due > now and is_in_use(theirs, index) and own_index(other.prefix, lane.pool, index, alike)
        if own then due_there[own] = math.max(due_there[own] or 0, due) end
      end
    end
  end
  return elsewhere, due_there
end

-- Limit the exits of a lane by their use in other crawls. A lane without a roster begins one only if an exit is due later: the lanes
-- of a pool begin with its exits in turn, in the order in which they use them.
function shared_exits.heed(lane)
  local pool = pool_of(lane.via)
  if not pool.exists then return end
  local interval, cap = pool.interval, pool.cap
  for _, other in ipairs(lane.others) do
    if host_rules.is_heeded(other) then
      local limits = call('HMGET', other.prefix .. 'pool:' .. pool.name, 'interval', 'cap')
      interval, cap = math.max(interval, tonumber(limits[1]) or 0), math.min(cap, tonumber(limits[2]) or cap)
    end
  end
  lane.pool = stricter(pool, interval, cap)
  local elsewhere, due_there = read_rosters(lane)
  if next(elsewhere) then lane.elsewhere = elsewhere end
  local roster = (lane.roster or next(due_there)) and roster_of(lane)
  if not roster then return end
  roster.elsewhere = lane.elsewhere
  for own, due in pairs(due_there) do
    if is_in_use(roster, own) and due > (roster.next_starts[own] or 0) then
      set_next_start(roster, own, due)
      lane.exits_changed = true
    end
  end
end
