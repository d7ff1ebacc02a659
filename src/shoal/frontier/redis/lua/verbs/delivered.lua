-- needs: crawl
-- delivered: remove entries from a shard's outbox that are now in their shard. Repeating it changes nothing.
-- They are kept in `sent` until the other server has them on its disk: a server that crashes loses its last second.
--
-- ARGV[3…]  first number, last number, … of each range
-- Reply     {"ok"}
local KEPT_SECONDS = 5
for i = 3, #ARGV, 2 do
  local first, last, sent = ARGV[i], ARGV[i + 1], {}
  for _, entry in ipairs(call('ZRANGEBYSCORE', P .. 'outbox', first, last)) do
    sent[#sent + 1] = now
    sent[#sent + 1] = entry
  end
  if #sent > 0 then
    call('ZADD', P .. 'sent', unpack(sent))
    call('ZREMRANGEBYSCORE', P .. 'outbox', first, last)
  end
end
call('ZREMRANGEBYSCORE', P .. 'sent', '-inf', now - KEPT_SECONDS)
return {'ok'}
