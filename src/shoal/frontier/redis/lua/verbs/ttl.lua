-- needs: expiry
-- ttl: change how long keys stay known in a crawl whose keys expire; other crawls do not change. A generation that is too old for a
-- shorter ttl ends here, so that none of its keys expires too early.
--
-- ARGV[3]  seconds
-- Reply    {"ok"}
if not ttl then return {'ok'} end
local seconds = ARGV[3]
expire_keys()
ttl = assert(tonumber(seconds))
if generations_due() > 0 then begin_generations(1, now) end
call('HSET', P .. 'crawl', 'dedup_ttl', seconds)
return {'ok'}
