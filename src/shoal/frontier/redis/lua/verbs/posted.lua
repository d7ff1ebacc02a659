-- include: crawl
-- posted: what lies in a shard's outbox and was left behind, oldest first.
--
-- ARGV[3]  how many at most
-- Reply    {"ok", entry (see outbox), …}
local reply = {'ok'}
for _, entry in ipairs(call('ZRANGE', P .. 'outbox', 0, tonumber(ARGV[3]) - 1)) do
  if not is_left_behind(entry) then break end
  reply[#reply + 1] = entry
end
return reply
