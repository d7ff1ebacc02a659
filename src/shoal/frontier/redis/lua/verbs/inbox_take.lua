-- inbox_take: take entries from an inbox, oldest first; entries that were taken and not deleted are given again.
-- A batch ends with the entry that makes it too large. An entry is in the inbox or among the taken ones until it is deleted. One taker
-- at a time: a taker that is silent for its time is replaced, and the next one gets its entries.
--
-- KEYS[1]  the inbox
-- KEYS[2]  the taken entries
-- KEYS[3]  the taker
-- ARGV[1]  the name of the caller
-- ARGV[2]  milliseconds for which it may keep the entries
-- ARGV[3]  how many entries at most
-- Reply    the taken entries, newest first; none while another taker has them
local inbox, taken, taker = KEYS[1], KEYS[2], KEYS[3]
local caller, milliseconds, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local holder = redis.call('GET', taker)
if holder and holder ~= caller then
  -- After the server's clock was set back, the remaining seconds may become an hour.
  if redis.call('PTTL', taker) > tonumber(milliseconds) then redis.call('PEXPIRE', taker, milliseconds) end
  return {}
end
local total = redis.call('LLEN', taken)
if total == 0 and redis.call('LLEN', inbox) == 0 then return {} end
redis.call('SET', taker, caller, 'PX', milliseconds)
if total == 0 then
  local size = 0
  for _ = 1, limit do
    local entry = redis.call('RPOPLPUSH', inbox, taken)
    if not entry then break end
    size = size + #entry
    if size >= MAX_TAKEN_BYTES then break end
  end
end
return redis.call('LRANGE', taken, 0, -1)
