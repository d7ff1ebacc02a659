-- needs: server
-- workers: the latest heartbeats, newest first, a bounded number.
--
-- KEYS[1]  the prefix of the workers' keys
-- ARGV[1]  the time in seconds, for tests; "" is the server's own
-- ARGV[2]  the greatest age of a heartbeat in seconds
-- ARGV[3]  a crawl, for its latest workers; "" for all workers that have not left
-- Reply    {when, heartbeat, … for each}
local MAX_WORKERS = 5000
local within, crawl, reply = tonumber(ARGV[2]), ARGV[3], {}
local seen, beats = P .. 'seen', P .. 'beats'
if crawl ~= '' then seen, beats = P .. 'seen:' .. crawl, P .. 'beats:' .. crawl end
local entries = call('ZREVRANGEBYSCORE', seen, '+inf', now - within, 'WITHSCORES', 'LIMIT', 0, MAX_WORKERS)
for i = 1, #entries, 2 do
  local worker, seen_at = entries[i], entries[i + 1]
  local sign = call('HGET', beats, worker)
  if sign then
    reply[#reply + 1] = seen_at
    reply[#reply + 1] = sign
  end
end
return reply
