-- needs: crawl outbox
-- posted: the entries of a shard's outbox that were left behind, oldest first.
--
-- ARGV[3]  how many at most
-- Reply    {"ok", entry (see outbox), …}
local limit, reply = tonumber(ARGV[3]), {'ok'}
for _, entry in ipairs(call('ZRANGE', P .. 'outbox', 0, limit - 1)) do
  if not is_left_behind(entry) then break end
  reply[#reply + 1] = entry
end
return reply
