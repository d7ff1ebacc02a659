-- needs: server key_names host_names other_records
-- delete: delete a crawl's keys, a bounded number per call. No other verb sees the crawl after the first call. The still valid state of
-- shared hosts is kept for other crawls.
--
-- KEYS[1]  the prefix of the crawl's keys
-- Reply    "1" while keys are left, else "0"
local MAX_LANES = 200
if call('EXISTS', P .. 'crawl') == 0 then return '0' end
call('HSET', P .. 'crawl', 'state', 'deleting')
local kinds = kinds_of_record()
local kept = read_fields('crawl', 'share', 'clock_shift')
local is_sharing, shift = (kept.share or '') ~= '' and host_names.is_shared, tonumber(kept.clock_shift or nil) or 0

local _, page = unpack(call('HSCAN', P .. 'lanes', 0, 'COUNT', MAX_LANES))
if #page > 0 then
  for i = 1, #page, 2 do
    local lane = page[i]
    if is_sharing then
      local record = records.read_for_others(P, lane, page[i + 1], shift)
      if record then host_names.keep(lane, record, now) end
      host_names.leave(lane)
    end
    call('UNLINK', P .. 'q:' .. lane, P .. 'shape:' .. lane, P .. 'uses:' .. lane, P .. 'rests:' .. lane)
    for _, kind in ipairs(kinds) do call('UNLINK', P .. 'kq:' .. kind .. ':' .. lane) end
    call('HDEL', P .. 'lanes', lane)
  end
  return '1'
end
if remove_key_sets() then return '1' end
local accounts = is_sharing and call('HGETALL', host_names.slot .. 'accounts') or {}
for i = 1, #accounts, 2 do
  if accounts[i + 1] == host_names.mine then call('HDEL', host_names.slot .. 'accounts', accounts[i]) end
end
for _, kind in ipairs(kinds) do call('UNLINK', P .. 'ready:' .. kind) end
for _, name in ipairs(call('HKEYS', P .. 'pools')) do call('UNLINK', P .. 'pool:' .. name) end
for _, name in ipairs(FIXED_NAMES) do call('UNLINK', P .. name) end
return '0'
