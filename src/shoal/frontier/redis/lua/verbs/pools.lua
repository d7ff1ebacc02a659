-- needs: crawl exits offers roster_record
-- pools: replace the pools of a crawl; offered exits stay (see offer). Walk its lanes afterwards (see walk).
--
-- ARGV[3]  the pools for the crawl's record
-- then     for each pool: name, number of its exits, twelve limits (see exits), the exits
-- Reply    {"ok"}
local REMOVED_BYTE, FIRST_POOL = string.char(REMOVED), 4

-- The names of the pool's exits, from index 0 on, and the index of each.
local function read_names(key)
  local names, indexes, size = {}, {}, tonumber(call('HGET', key, 'size')) or 0
  for block = 0, math.ceil(size / NAMES_PER_BLOCK) - 1 do
    for name in string.gmatch(call('HGET', key, 'b:' .. block) or '', '([^\n]*)\n') do
      -- Names after the end are from a write that a crash has cut.
      if #names < size then names[#names + 1], indexes[name] = name, #names end
    end
  end
  return names, indexes
end

-- Add the exits to the list of the pool's exits, new ones at the end. Gives the indexes, and the size of the list.
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

-- First: a repair writes again from the record what a crash has cut.
call('HSET', P .. 'crawl', 'pools', ARGV[3])
local paces, given = {}, {}
for _, name in ipairs(call('HKEYS', P .. 'pools')) do
  paces[name] = read_fields('pool:' .. name, 'host_interval', 'host_cap')
end
local texts, page = {}, call('HGETALL', P .. 'offers')
for i = 1, #page, 2 do
  if page[i] ~= '' then texts[page[i]] = page[i + 1] end
end

-- Write a pool with these limits and exits, and with the exits offered to it.
local function set_pool(name, limits, exits)
  local key, pace, is_own, offered = P .. 'pool:' .. name, paces[name] or {}, {}, {}
  given[name] = true
  call('HSET', P .. 'pools', name, 1)
  call('HDEL', key, 'old_host_interval', 'old_host_cap')
  if pace.host_interval then
    call('HSET', key, 'old_host_interval', pace.host_interval, 'old_host_cap', pace.host_cap)
  end
  for i, field in ipairs(POOL_LIMITS) do call('HSET', key, field, limits[i]) end
  for i = 1, #exits do is_own[exits[i]] = true end
  local _, names = offers.read(texts[name] or '\n')
  for _, exit in ipairs(names) do
    if not is_own[exit] then exits[#exits + 1], offered[#offered + 1] = exit, exit .. '\n' end
  end
  local indexes, size = enrol(key, exits)
  call('HSET', key, 'size', size, 'present', #exits, 'marks', marks_of(exits, indexes, size), 'offered', table.concat(offered))
end

local at = FIRST_POOL
while ARGV[at] do
  local total, first = assert(tonumber(ARGV[at + 1])), at + 2 + #POOL_LIMITS
  set_pool(ARGV[at], {unpack(ARGV, at + 2, first - 1)}, {unpack(ARGV, first, first + total - 1)})
  at = first + total
end
for name, text in pairs(texts) do
  if not given[name] and string.sub(name, 1, #REGION) == REGION then
    local limits = {}
    for limit in string.gmatch((offers.read(text)), '%S+') do limits[#limits + 1] = limit end
    set_pool(name, limits, {})
  end
end
for name in pairs(paces) do
  if not given[name] then
    local key = P .. 'pool:' .. name
    call('HSET', P .. 'pools', name, 0)
    call('HDEL', key, 'old_host_interval', 'old_host_cap', 'offered', unpack(POOL_LIMITS))
    call('HSET', key, 'present', 0, 'marks', string.rep(REMOVED_BYTE, tonumber(call('HGET', key, 'size')) or 0))
  end
end
return {'ok'}
