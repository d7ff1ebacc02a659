-- needs: crawl exits offers
-- offer: a worker offers exits that others may lack. They stay until nobody has offered them for OFFER_SECONDS. The limits are those of
-- the first offer, with the longest interval and the smallest cap of all offers since; a call whose exits are the only ones left sets
-- them anew.
--
-- ARGV[3…]  for each pool: name, number of its exits, twelve limits (see exits), the exits
-- Reply     {"ok", "1" if exits or limits have changed: write the pools anew (see pools), walk the lanes, then call `offered`}
--
-- offers    pool → a line with its limits, separated by spaces; then a line per exit: until when, a space, the exit.
--           "" → exists while lanes have not been walked since the last change
local RENEWED_AT = 0.75 * OFFER_SECONDS
local pools, is_changed, values, at = {}, false, {}, 3

local page = call('HGETALL', P .. 'offers')
for i = 1, #page, 2 do
  if page[i] == '' then
    is_changed = true
  else
    local limits, names, until_when = offers.read(page[i + 1])
    local left = {}
    for _, name in ipairs(names) do
      if until_when[name] > now then left[#left + 1] = name else until_when[name] = nil end
    end
    pools[page[i]] = {limits = limits, names = left, until_when = until_when, is_written = #left < #names}
    is_changed = is_changed or #left < #names
  end
end

-- Whether others offer exits of the pool that are not among these.
local function has_others(one, exits)
  local own = {}
  for _, exit in ipairs(exits) do own[exit] = true end
  for exit in pairs(one.until_when) do
    if not own[exit] then return true end
  end
  return false
end

local function strictest(limits, other)
  local interval, cap, rest = string.match(limits, '^(%S+) (%S+)(.*)$')
  local other_interval, other_cap = string.match(other, '^(%S+) (%S+)')
  if tonumber(other_interval) > tonumber(interval) then interval = other_interval end
  if tonumber(other_cap) < tonumber(cap) then cap = other_cap end
  return interval .. ' ' .. cap .. rest
end

local function offer(pool, exits, limits)
  local one = pools[pool] or {limits = limits, names = {}, until_when = {}}
  pools[pool] = one
  if one.limits ~= limits and has_others(one, exits) then limits = strictest(one.limits, limits) end
  if one.limits ~= limits then one.limits, one.is_written, is_changed = limits, true, true end
  for _, exit in ipairs(exits) do
    local known = one.until_when[exit]
    if not known then one.names[#one.names + 1], is_changed = exit, true end
    if not known or known < now + RENEWED_AT then one.until_when[exit], one.is_written = now + OFFER_SECONDS, true end
  end
end

while ARGV[at] do
  local name, total = ARGV[at], assert(tonumber(ARGV[at + 1]))
  local first = at + 2 + #POOL_LIMITS
  local is_usable = string.sub(name, 1, #REGION) == REGION or call('HGET', P .. 'pools', name) == '1'
  if is_usable then
    offer(name, {unpack(ARGV, first, first + total - 1)}, table.concat({unpack(ARGV, at + 2, first - 1)}, ' '))
  end
  at = first + total
end

for name, one in pairs(pools) do
  if one.is_written then
    local lines = {one.limits}
    for i, exit in ipairs(one.names) do lines[i + 1] = format('%.17g ', one.until_when[exit]) .. exit end
    values[#values + 1], values[#values + 2] = name, table.concat(lines, '\n') .. '\n'
  end
end
if is_changed then values[#values + 1], values[#values + 2] = '', '1' end
write_in_parts('HSET', P .. 'offers', values)
return {'ok', is_changed and '1' or '0'}
