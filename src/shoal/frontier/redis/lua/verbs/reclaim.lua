-- include: crawl
-- reclaim: take back the part of `max_pages` that a shard has not used. What was granted before is void from here on:
-- a grant names the generation it is for.
--
-- Reply  {"ok", generation, number of tasks the shard has accepted}
local numbers = call('HMGET', P .. 'count', 'generation', 'queued', 'delayed', 'leased', 'done', 'dead', 'cancelled')
local known = 0
for i = 2, 7 do known = known + (tonumber(numbers[i]) or 0) end
-- By the clock, so that it grows even if the last second of this server was lost.
local generation = format('%.0f', math.max((tonumber(numbers[1]) or 0) + 1, server_time[1] * 1000))
call('HSET', P .. 'count', 'generation', generation, 'allowed', format('%.0f', known))
return {'ok', generation, format('%.0f', known)}
