-- needs: crawl exits roster_record
-- pools: replace the pools of a crawl. Walk its lanes afterwards (see walk).
--
-- ARGV[3]  the pools as the crawl's record shows them
-- then     for each pool: name, number of its exits, twelve limits (see exits), the exits
-- Reply    {"ok"}
local REMOVED_BYTE, FIRST_POOL = string.char(REMOVED), 4

-- The names of the pool's exits, from index 0 on, and the index of each.
local function read_names(key)
  local names, indexes, size = {}, {}, tonumber(call('HGET', key, 'size')) or 0
  for block = 0, math.ceil(size / NAMES_PER_BLOCK) - 1 do
    for name in string.gmatch(call('HGET', key, 'b:' .. block) or '', '([^\n]*)\n') do
      -- Names behind the end are half of a write that a crash cut off.
      if #names < size then names[#names + 1], indexes[name] = name, #names end
    end
  end
  return names, indexes
end

-- Put the exits on the list of the pool's exits; new ones come behind the others. Gives the indexes, and the size of the list.
local function enrol(key, exits)
  local names, indexes = read_names(key)
  local size, values = #names, {}
  for _, exit in ipairs(exits) do
    if not indexes[exit] then names[#names + 1], indexes[exit] = exit, #names end
  end
  for block = math.floor(size / NAMES_PER_BLOCK), math.ceil(#names / NAMES_PER_BLOCK) - 1 do
    local first = block * NAMES_PER_BLOCK
    values[#values + 1] = 'b:' .. block
    values[#values + 1] = table.concat(names, '\n', first + 1, math.min(first + NAMES_PER_BLOCK, #names)) .. '\n'
  end
  for index = size, #names - 1 do
    values[#values + 1] = 'e:' .. names[index + 1]
    values[#values + 1] = index
  end
  write_in_parts('HSET', key, values)
  return indexes, #names
end

local function marks_of(exits, indexes, size)
  local marks = {}
  for i = 1, size do marks[i] = REMOVED_BYTE end
  for _, exit in ipairs(exits) do marks[indexes[exit] + 1] = string.char(HEALTHY) end
  return without_last_zeros(table.concat(marks))
end

-- First of all: from the record a repair writes again what a crash has cut off.
call('HSET', P .. 'crawl', 'pools', ARGV[3])
local paces, given = {}, {}
for _, name in ipairs(call('HKEYS', P .. 'pools')) do
  paces[name] = read_fields('pool:' .. name, 'host_interval', 'host_cap')
end
local at = FIRST_POOL
while ARGV[at] do
  local name, total = ARGV[at], assert(tonumber(ARGV[at + 1]))
  local key, pace, exits = P .. 'pool:' .. name, paces[name] or {}, {}
  given[name], at = true, at + 2
  call('HSET', P .. 'pools', name, 1)
  call('HDEL', key, 'old_host_interval', 'old_host_cap')
  if pace.host_interval then
    call('HSET', key, 'old_host_interval', pace.host_interval, 'old_host_cap', pace.host_cap)
  end
  for i, field in ipairs(POOL_LIMITS) do call('HSET', key, field, ARGV[at + i - 1]) end
  at = at + #POOL_LIMITS
  for i = 1, total do exits[i] = ARGV[at + i - 1] end
  at = at + total
  local indexes, size = enrol(key, exits)
  call('HSET', key, 'size', size, 'present', total, 'marks', marks_of(exits, indexes, size))
end
for name in pairs(paces) do
  if not given[name] then
    local key = P .. 'pool:' .. name
    call('HSET', P .. 'pools', name, 0)
    call('HDEL', key, 'old_host_interval', 'old_host_cap', unpack(POOL_LIMITS))
    call('HSET', key, 'present', 0, 'marks', string.rep(REMOVED_BYTE, tonumber(call('HGET', key, 'size')) or 0))
  end
end
return {'ok'}
