-- needs: server key_names
-- delete: remove a crawl's keys, a bounded number per call. From the first call on no other verb sees the crawl.
--
-- KEYS[1]  the prefix of the crawl's keys
-- Reply    "1" while keys are left, else "0"
local MAX_LANES = 200
if call('EXISTS', P .. 'crawl') == 0 then return '0' end
call('HSET', P .. 'crawl', 'state', 'deleting')
local kinds = kinds_of_record()

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
if remove_key_sets() then return '1' end
for _, kind in ipairs(kinds) do call('UNLINK', P .. 'ready:' .. kind) end
for _, name in ipairs(call('HKEYS', P .. 'pools')) do call('UNLINK', P .. 'pool:' .. name) end
for _, name in ipairs(FIXED_NAMES) do call('UNLINK', P .. name) end
return '0'
