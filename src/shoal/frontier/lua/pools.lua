-- include: crawl
-- pools: replace the pools of a crawl. Walk its lanes afterwards (see walk).
--
-- ARGV[3]  the pools as the crawl's record shows them
-- then     for each pool: name, thirteen values (see exits), the first of which is the number of its exits; the exits
-- Reply    {"ok"}
local FIELDS = {
  'size', 'interval', 'cap', 'host_interval', 'host_cap', 'exclusive', 'sticky', 'rotate', 'quarantine', 'max_quarantine',
  'patience', 'cost', 'cost_per_gb',
}
-- First of all: from the record a repair writes again what a crash has cut off.
call('HSET', P .. 'crawl', 'pools', ARGV[3])
local paces = {}
for _, name in ipairs(call('HKEYS', P .. 'pools')) do
  paces[name] = call('HMGET', P .. 'pool:' .. name, 'host_interval', 'host_cap')
  call('UNLINK', P .. 'pool:' .. name)
end
call('UNLINK', P .. 'pools')
local at = 4
while ARGV[at] do
  local name, size = ARGV[at], assert(tonumber(ARGV[at + 1]))
  local key, pace = P .. 'pool:' .. name, paces[name] or {}
  call('HSET', P .. 'pools', name, 1)
  for place, field in ipairs(FIELDS) do call('HSET', key, field, ARGV[at + place]) end
  if pace[1] then call('HSET', key, 'old_host_interval', pace[1], 'old_host_cap', pace[2]) end
  at = at + 1 + #FIELDS
  for place = 0, size - 1 do call('HSET', key, 'p' .. place, ARGV[at + place], 'e' .. ARGV[at + place], place) end
  at = at + size
end
return {'ok'}
