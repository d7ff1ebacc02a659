-- include: crawl exits rosters
-- pools: replace the pools of a crawl. Walk its lanes afterwards (see walk).
--
-- ARGV[3]  the pools as the crawl's record shows them
-- then     for each pool: name, number of its exits, twelve limits (see exits), the exits
-- Reply    {"ok"}
local GONE = string.char(MARK.GONE)

-- The names on the pool's roll, from place 0 on, and the places of all of them.
local function read_roll(key)
  local names, places, size = {}, {}, tonumber(call('HGET', key, 'size')) or 0
  for block = 0, math.ceil(size / NAMES_PER_BLOCK) - 1 do
    for name in string.gmatch(call('HGET', key, 'b:' .. block) or '', '([^\n]*)\n') do
      -- Names behind its end were cut off from what belongs to them.
      if #names < size then names[#names + 1], places[name] = name, #names end
    end
  end
  return names, places
end

-- Put the exits on the pool's roll; those it does not have come behind the others. Gives the places, and the roll's size.
local function enrol(key, exits)
  local names, places = read_roll(key)
  local size, values = #names, {}
  for _, exit in ipairs(exits) do
    if not places[exit] then names[#names + 1], places[exit] = exit, #names end
  end
  for block = math.floor(size / NAMES_PER_BLOCK), math.ceil(#names / NAMES_PER_BLOCK) - 1 do
    local first = block * NAMES_PER_BLOCK
    values[#values + 1] = 'b:' .. block
    values[#values + 1] = table.concat(names, '\n', first + 1, math.min(first + NAMES_PER_BLOCK, #names)) .. '\n'
  end
  for place = size, #names - 1 do
    values[#values + 1] = 'e:' .. names[place + 1]
    values[#values + 1] = place
  end
  write_in_parts('HSET', key, values)
  return places, #names
end

local function marks_of(exits, places, size)
  local marks = {}
  for place = 1, size do marks[place] = GONE end
  for _, exit in ipairs(exits) do marks[places[exit] + 1] = '\0' end
  return without_last_zeros(table.concat(marks))
end

-- First of all: from the record a repair writes again what a crash has cut off.
call('HSET', P .. 'crawl', 'pools', ARGV[3])
local paces, given = {}, {}
for _, name in ipairs(call('HKEYS', P .. 'pools')) do
  paces[name] = call('HMGET', P .. 'pool:' .. name, 'host_interval', 'host_cap')
end
local at = 4
while ARGV[at] do
  local name, total = ARGV[at], assert(tonumber(ARGV[at + 1]))
  local key, pace, exits = P .. 'pool:' .. name, paces[name] or {}, {}
  given[name], at = true, at + 2
  call('HSET', P .. 'pools', name, 1)
  call('HDEL', key, 'old_host_interval', 'old_host_cap')
  if pace[1] then call('HSET', key, 'old_host_interval', pace[1], 'old_host_cap', pace[2]) end
  for i, field in ipairs(POOL) do call('HSET', key, field, ARGV[at + i - 1]) end
  at = at + #POOL
  for i = 1, total do exits[i] = ARGV[at + i - 1] end
  at = at + total
  local places, size = enrol(key, exits)
  call('HSET', key, 'size', size, 'present', total, 'marks', marks_of(exits, places, size))
end
for name in pairs(paces) do
  if not given[name] then
    local key = P .. 'pool:' .. name
    call('HSET', P .. 'pools', name, 0)
    call('HDEL', key, 'old_host_interval', 'old_host_cap', unpack(POOL))
    call('HSET', key, 'present', 0, 'marks', string.rep(GONE, tonumber(call('HGET', key, 'size')) or 0))
  end
end
return {'ok'}
