-- include: crawl
-- delivered: take out of a shard's outbox what is now where it belongs. Repeating it changes nothing.
--
-- ARGV[3…]  numbers
-- Reply     {"ok"}
for i = 3, #ARGV do call('ZREMRANGEBYSCORE', P .. 'outbox', ARGV[i], ARGV[i]) end
return {'ok'}
