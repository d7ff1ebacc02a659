-- beat: note a worker's sign of life; signs older than a day go.
--
-- KEYS[1]  the prefix of the workers' keys
-- ARGV[1]  the time in seconds, for tests; "" is the server's own
-- ARGV[2]  worker
-- ARGV[3]  its sign of life
-- Reply    "ok"
local OLDEST, MAX_REMOVED = 86400, 100
local P, call = KEYS[1], redis.call
local server_time = call('TIME')
local now = tonumber(ARGV[1]) or server_time[1] + server_time[2] / 1000000
call('HSET', P .. 'beats', ARGV[2], ARGV[3])
call('ZADD', P .. 'seen', now, ARGV[2])
local old = call('ZRANGEBYSCORE', P .. 'seen', '-inf', now - OLDEST, 'LIMIT', 0, MAX_REMOVED)
if #old > 0 then
  call('ZREM', P .. 'seen', unpack(old))
  call('HDEL', P .. 'beats', unpack(old))
end
return 'ok'
