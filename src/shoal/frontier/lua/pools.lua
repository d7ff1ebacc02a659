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
for _, name in ipairs(call('HKEYS', P .. 'pools')) do call('UNLINK', P .. 'pool:' .. name) end
call('UNLINK', P .. 'pools')
local at = 4
while ARGV[at] do
  local key, size = P .. 'pool:' .. ARGV[at], assert(tonumber(ARGV[at + 1]))
  call('HSET', P .. 'pools', ARGV[at], 1)
  for place, field in ipairs(FIELDS) do call('HSET', key, field, ARGV[at + place]) end
  at = at + 1 + #FIELDS
  for place = 0, size - 1 do call('HSET', key, 'p' .. place, ARGV[at + place], 'e' .. ARGV[at + place], place) end
  at = at + size
end
call('HSET', P .. 'crawl', 'pools', ARGV[3])
return {'ok'}
