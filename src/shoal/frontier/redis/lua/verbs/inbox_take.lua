-- Takes entries out of an inbox, oldest first; what was taken and not forgotten is given again.
-- Guarantee: an entry is in the inbox or among the taken ones until it is forgotten. One taker at a time; a taker
-- that is silent for its time is replaced, and the next one gets what it took.
-- KEYS: the inbox, the taken entries, the taker. ARGV: who asks, milliseconds it may keep them, how many.
-- Gives the taken entries, newest first; none while somebody else has them.
local holder = redis.call('GET', KEYS[3])
if holder and holder ~= ARGV[1] then return {} end
local taken = redis.call('LLEN', KEYS[2])
if taken == 0 and redis.call('LLEN', KEYS[1]) == 0 then return {} end
redis.call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2])
if taken == 0 then
  for _ = 1, tonumber(ARGV[3]) do
    if not redis.call('RPOPLPUSH', KEYS[1], KEYS[2]) then break end
  end
end
return redis.call('LRANGE', KEYS[2], 0, -1)
