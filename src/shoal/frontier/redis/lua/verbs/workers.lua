-- workers: the latest signs of life.
--
-- KEYS[1]  the prefix of the workers' keys
-- ARGV[1]  the time in seconds, for tests; "" is the server's own
-- ARGV[2]  not older than so many seconds
-- Reply    {when, sign of life, … for each}
local MAX_WORKERS = 5000
local P, call = KEYS[1], redis.call
local server_time = call('TIME')
local now = tonumber(ARGV[1]) or server_time[1] + server_time[2] / 1000000
local reply = {}
local entries = call('ZREVRANGEBYSCORE', P .. 'seen', '+inf', now - tonumber(ARGV[2]), 'WITHSCORES', 'LIMIT', 0, MAX_WORKERS)
for i = 1, #entries, 2 do
  local beat = call('HGET', P .. 'beats', entries[i])
  if beat then
    reply[#reply + 1] = entries[i + 1]
    reply[#reply + 1] = beat
  end
end
return reply
