-- include: crawl
-- feeding: whether a source is still feeding the crawl; feeding a finished one sets it running.
--
-- ARGV[3]  "1" or "0"
-- Reply    {"ok"}
call('HSET', P .. 'crawl', 'feeding', ARGV[3])
if ARGV[3] == '1' then revive() end
return {'ok'}
