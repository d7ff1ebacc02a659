-- include: crawl
-- delivered: take out of a shard's outbox what is now where it belongs. Repeating it changes nothing.
-- It is kept aside until the other server has it on its disk for sure: one that crashes loses its last second.
--
-- ARGV[3…]  first number, last number, … of each range
-- Reply     {"ok"}
--
-- sent      entry of the outbox → when it was delivered
local KEPT_SECONDS = 5
for i = 3, #ARGV, 2 do
  local sent = {}
  for _, entry in ipairs(call('ZRANGEBYSCORE', P .. 'outbox', ARGV[i], ARGV[i + 1])) do
    sent[#sent + 1] = now
    sent[#sent + 1] = entry
  end
  if #sent > 0 then
    call('ZADD', P .. 'sent', unpack(sent))
    call('ZREMRANGEBYSCORE', P .. 'outbox', ARGV[i], ARGV[i + 1])
  end
end
call('ZREMRANGEBYSCORE', P .. 'sent', '-inf', now - KEPT_SECONDS)
return {'ok'}
