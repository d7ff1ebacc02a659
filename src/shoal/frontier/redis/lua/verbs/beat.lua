-- needs: server
-- beat: note a worker's sign of life; signs older than a day go.
--
-- KEYS[1]  the prefix of the workers' keys
-- ARGV[1]  the time in seconds, for tests; "" is the server's own
-- ARGV[2]  worker
-- ARGV[3]  its sign of life
-- Reply    "ok"
--
-- beats  worker → its sign of life
-- seen   worker → when it came
local MAX_REMOVED = 100
local worker, sign = ARGV[2], ARGV[3]
call('HSET', P .. 'beats', worker, sign)
call('ZADD', P .. 'seen', now, worker)
local old = call('ZRANGEBYSCORE', P .. 'seen', '-inf', now - BEAT_SECONDS, 'LIMIT', 0, MAX_REMOVED)
if #old > 0 then
  call('ZREM', P .. 'seen', unpack(old))
  call('HDEL', P .. 'beats', unpack(old))
end
return 'ok'
