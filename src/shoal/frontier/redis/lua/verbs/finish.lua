-- include: crawl
-- finish: the second look at a shard that was quiet. When it is still, and nothing moved in between, it is finished.
--
-- ARGV[3]  its moves so far, as the first look saw them
-- Reply    {"ok", "1" if nothing moved}
local numbers = call('HMGET', P .. 'count', 'queued', 'delayed', 'leased')
local left = (tonumber(numbers[1]) or 0) + (tonumber(numbers[2]) or 0) + (tonumber(numbers[3]) or 0)
local is_quiet = moves_so_far() == ARGV[3] and left == 0 and call('EXISTS', P .. 'outbox') == 0
if not is_quiet or crawl.feeding or crawl.state == 'paused' then return {'ok', '0'} end
if crawl.state == 'running' then call('HSET', P .. 'crawl', 'state', 'finished', 'finished', now) end
return {'ok', '1'}
