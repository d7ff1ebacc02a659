-- include: crawl
-- resend: put what was delivered lately back into a shard's outbox, a bounded number: a shard that it went to lost its
-- last second.
--
-- Reply  {"ok", "1" while there is more}
local MAX_ENTRIES = 500
local sent = call('ZRANGE', P .. 'sent', 0, MAX_ENTRIES - 1)
for _, entry in ipairs(sent) do
  local id = unpack_struct('>d', entry)
  -- Of no time: it was left behind.
  call('ZADD', P .. 'outbox', id, pack('>dd', id, 0) .. string.sub(entry, 17))
end
if #sent > 0 then
  call('ZREM', P .. 'sent', unpack(sent))
  stir()
end
return {'ok', #sent == MAX_ENTRIES and '1' or '0'}
