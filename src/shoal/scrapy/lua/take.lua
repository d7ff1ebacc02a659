-- take: move start URLs from where they were pushed to the set of taken entries, each under its own name. An entry that
-- is not done in time is taken again under the same name: putting it twice makes one task.
--
-- KEYS[1]   where start URLs are pushed: a list, a set or a sorted set
-- KEYS[2]   those under way: name, a space, the entry; scored by the time at which anybody may take it again
-- ARGV[1]   how many at most
-- ARGV[2]   a text that no other call gives
-- ARGV[3]   seconds until they may be taken again
-- Reply     members of KEYS[2]; an error when KEYS[1] is of another type
local pushed, under_way, most = KEYS[1], KEYS[2], tonumber(ARGV[1])
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local again = now + tonumber(ARGV[3])

local function pop(number)
  local kind = redis.call('TYPE', pushed).ok
  if kind == 'none' then return {} end
  if kind == 'list' then return redis.call('LPOP', pushed, number) end
  if kind == 'set' then return redis.call('SPOP', pushed, number) end
  if kind ~= 'zset' then
    return redis.error_reply('SHOALTYPE ' .. kind)
  end
  local entries, scored = {}, redis.call('ZPOPMAX', pushed, number)
  for i = 1, #scored, 2 do entries[#entries + 1] = scored[i] end
  return entries
end

local taken = redis.call('ZRANGEBYSCORE', under_way, '-inf', now, 'LIMIT', 0, most)
if #taken < most then
  local entries = pop(most - #taken)
  if entries.err then return entries end
  for i, entry in ipairs(entries) do taken[#taken + 1] = ARGV[2] .. '.' .. i .. ' ' .. entry end
end
for _, member in ipairs(taken) do redis.call('ZADD', under_way, again, member) end
return taken
