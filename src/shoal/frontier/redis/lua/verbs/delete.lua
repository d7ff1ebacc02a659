-- delete: remove a crawl's keys, a bounded number per call. From the first call on nobody sees the crawl.
--
-- KEYS[1]  the prefix of the crawl's keys
-- Reply    "1" while something is left
local MAX_LANES, MAX_BUCKETS = 200, 500
local P, call = KEYS[1], redis.call
if call('EXISTS', P .. 'crawl') == 0 then return '0' end
call('HSET', P .. 'crawl', 'state', 'deleting')

local page = call('HSCAN', P .. 'lanes', 0, 'COUNT', MAX_LANES)[2]
if #page > 0 then
  for i = 1, #page, 2 do
    call('UNLINK', P .. 'q:' .. page[i], P .. 'shape:' .. page[i], P .. 'uses:' .. page[i], P .. 'rests:' .. page[i])
    call('HDEL', P .. 'lanes', page[i])
  end
  return '1'
end
local buckets = tonumber(call('HGET', P .. 'crawl', 'buckets') or 0)
if buckets > 0 then
  local kept = call('HMGET', P .. 'turns', 'swept', 'generation')
  local swept, generation = tonumber(kept[1]) or 0, tonumber(kept[2]) or -1
  local last = math.max(0, buckets - math.max(1, math.floor(MAX_BUCKETS / (generation - swept + 2))))
  for bucket = last, buckets - 1 do
    call('UNLINK', P .. 'seen:' .. bucket)
    for number = swept, generation do call('UNLINK', P .. 'past:' .. number .. ':' .. bucket) end
  end
  call('HSET', P .. 'crawl', 'buckets', last)
  return '1'
end
for number = 1, tonumber(call('HGET', P .. 'crawl', 'filters') or 1) do call('UNLINK', P .. 'bloom:' .. number) end
for _, name in ipairs(call('HKEYS', P .. 'pools')) do call('UNLINK', P .. 'pool:' .. name) end
for _, name in ipairs({
  'ready', 'busy', 'later', 'held', 'leases', 'tries', 'dead', 'graves', 'count', 'turns', 'outcomes', 'rejected', 'samples',
  'rules', 'repair', 'outbox', 'sent', 'grants', 'turns:via', 'exits', 'sessions', 'pools', 'crawl',
}) do
  call('UNLINK', P .. name)
end
return '0'
