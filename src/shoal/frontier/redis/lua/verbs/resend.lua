-- needs: crawl outbox
-- resend: put lately delivered entries back into a shard's outbox, a bounded number per call: their shard has lost its last second.
--
-- Reply  {"ok", "1" while more are left}
local MAX_ENTRIES, NO_TIME = 500, 0
local sent = call('ZRANGE', P .. 'sent', 0, MAX_ENTRIES - 1)
for _, entry in ipairs(sent) do
  local number, _, at = unpack_struct(ENTRY, entry)
  -- Without a time an entry counts as left behind.
  call('ZADD', P .. 'outbox', number, pack(ENTRY, number, NO_TIME) .. string.sub(entry, at))
end
if #sent > 0 then
  call('ZREM', P .. 'sent', unpack(sent))
  note_move()
end
return {'ok', #sent == MAX_ENTRIES and '1' or '0'}
