-- include: crawl exits
-- pools: replace the pools of a crawl. Walk its lanes afterwards (see walk).
--
-- ARGV[3]  the pools as the crawl's record shows them
-- then     for each pool: name, number of its exits, twelve limits (see exits), the exits
-- Reply    {"ok"}
local GONE = '\4'

-- What the pool's roll says of these names, a bounded number at a time.
local function look_up(key, prefix, names, note)
  for i = 1, #names, MAX_VALUES do
    local fields = {}
    for j = i, math.min(i + MAX_VALUES - 1, #names) do fields[#fields + 1] = prefix .. names[j] end
    for j, value in ipairs(call('HMGET', key, unpack(fields))) do note(names[i + j - 1], value) end
  end
end

-- The places of the exits on the pool's roll; those it does not have come behind the others. Gives the roll's size, too.
local function enrol(key, exits)
  local size, places, all, torn, values = tonumber(call('HGET', key, 'size')) or 0, {}, {}, {}, {}
  for place = 0, size - 1 do all[place + 1] = place end
  look_up(key, 'p:', all, function(place, exit)
    if exit then places[exit] = place end
  end)
  -- A crash may have cut off one of the two.
  look_up(key, 'e:', exits, function(exit, place)
    local known = tonumber(place)
    if not known or known ~= places[exit] then torn[#torn + 1] = exit end
    places[exit] = known or places[exit]
    size = math.max(size, (places[exit] or -1) + 1)
  end)
  for _, exit in ipairs(torn) do
    if not places[exit] then places[exit], size = size, size + 1 end
    for _, value in ipairs({'p:' .. places[exit], exit, 'e:' .. exit, places[exit]}) do values[#values + 1] = value end
  end
  write_in_parts('HSET', key, values)
  return places, size
end

local function marks_of(exits, places, size)
  local marks = {}
  for place = 1, size do marks[place] = GONE end
  for _, exit in ipairs(exits) do marks[places[exit] + 1] = '\0' end
  local text = table.concat(marks)
  local _, last = string.find(text, '^.*[^%z]')
  return string.sub(text, 1, last or 0)
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
