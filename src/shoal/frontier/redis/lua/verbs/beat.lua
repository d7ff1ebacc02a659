-- needs: server
-- beat: store a worker's heartbeat: among all workers for a day, and among the latest workers of its crawl.
--
-- KEYS[1]  the prefix of the workers' keys
-- ARGV[1]  the time in seconds, for tests; "" is the server's own
-- ARGV[2]  worker
-- ARGV[3]  its heartbeat
-- ARGV[4]  its crawl
-- ARGV[5]  "1" when it has left: it is then only among the workers of its crawl
-- Reply    "ok"
--
-- beats         worker → its heartbeat
-- seen          worker → when the heartbeat came
-- beats:CRAWL   the same two for the latest workers of one crawl
-- seen:CRAWL
local MAX_REMOVED = 100
local worker, sign, crawl, has_left = unpack(ARGV, 2, 5)

local function forget(seen, beats, old)
  if #old == 0 then return end
  call('ZREM', seen, unpack(old))
  call('HDEL', beats, unpack(old))
end

local function note(seen, beats)
  call('HSET', beats, worker, sign)
  call('ZADD', seen, now, worker)
end

local seen, beats = P .. 'seen', P .. 'beats'
if has_left == '1' then forget(seen, beats, {worker}) else note(seen, beats) end
forget(seen, beats, call('ZRANGEBYSCORE', seen, '-inf', now - BEAT_SECONDS, 'LIMIT', 0, MAX_REMOVED))

seen, beats = P .. 'seen:' .. crawl, P .. 'beats:' .. crawl
note(seen, beats)
forget(seen, beats, call('ZREVRANGE', seen, WORKERS_KEPT, WORKERS_KEPT + MAX_REMOVED))
-- The crawl may be deleted while its workers still run: heartbeats that come later must expire.
call('EXPIRE', seen, WORKERS_KEPT_SECONDS)
call('EXPIRE', beats, WORKERS_KEPT_SECONDS)
return 'ok'
