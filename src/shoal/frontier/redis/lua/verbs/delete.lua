-- needs: server
-- delete: remove a crawl's keys, a bounded number per call. From the first call on no other verb sees the crawl.
--
-- KEYS[1]  the prefix of the crawl's keys
-- Reply    "1" while keys are left, else "0"
local MAX_LANES, MAX_BUCKETS = 200, 500
if call('EXISTS', P .. 'crawl') == 0 then return '0' end
call('HSET', P .. 'crawl', 'state', 'deleting')

local kinds = {}
for kind in string.gmatch(call('HGET', P .. 'crawl', 'kinds') or '', '[^,]+') do kinds[#kinds + 1] = kind end

local _, page = unpack(call('HSCAN', P .. 'lanes', 0, 'COUNT', MAX_LANES))
if #page > 0 then
  for i = 1, #page, 2 do
    local lane = page[i]
    call('UNLINK', P .. 'q:' .. lane, P .. 'shape:' .. lane, P .. 'uses:' .. lane, P .. 'rests:' .. lane)
    for _, kind in ipairs(kinds) do call('UNLINK', P .. 'kq:' .. kind .. ':' .. lane) end
    call('HDEL', P .. 'lanes', lane)
  end
  return '1'
end
local crawl = read_fields('crawl', 'buckets', 'filters')
local buckets = tonumber(crawl.buckets) or 0
if buckets > 0 then
  local kept = read_fields('turns', 'swept', 'generation')
  local swept, generation = tonumber(kept.swept) or 0, tonumber(kept.generation) or -1
  local last = math.max(0, buckets - math.max(1, math.floor(MAX_BUCKETS / (generation - swept + 2))))
  for bucket = last, buckets - 1 do
    call('UNLINK', P .. 'seen:' .. bucket)
    for number = swept, generation do call('UNLINK', P .. 'past:' .. number .. ':' .. bucket) end
  end
  call('HSET', P .. 'crawl', 'buckets', last)
  return '1'
end
for number = 1, tonumber(crawl.filters) or 1 do call('UNLINK', P .. 'bloom:' .. number) end
for _, kind in ipairs(kinds) do call('UNLINK', P .. 'ready:' .. kind) end
for _, name in ipairs(call('HKEYS', P .. 'pools')) do call('UNLINK', P .. 'pool:' .. name) end
for _, name in ipairs({
  'ready', 'busy', 'later', 'visits', 'held', 'leases', 'tries', 'dead', 'graves', 'count', 'turns', 'outcomes', 'rejected', 'notes', 'samples',
  'rules', 'whys', 'repair', 'bad', 'feeders', 'outbox', 'sent', 'grants', 'turns:via', 'exits', 'sessions', 'pools', 'offers', 'points', 'points:long', 'crawl',
}) do
  call('UNLINK', P .. name)
end
return '0'
