-- needs: expiry
-- ttl: change how long keys stay known, in a crawl whose keys expire; nothing changes in any other. A generation that is
-- too old for a shorter ttl ends here, so that none of its keys is forgotten too early.
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
