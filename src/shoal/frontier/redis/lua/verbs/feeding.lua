-- needs: crawl
-- feeding: whether a source is still feeding the crawl; feeding a finished crawl sets it running.
--
-- ARGV[3]  "1" or "0"
-- Reply    {"ok"}
local is_feeding = ARGV[3]
call('HSET', P .. 'crawl', 'feeding', is_feeding)
if is_feeding == '1' then revive() end
return {'ok'}
