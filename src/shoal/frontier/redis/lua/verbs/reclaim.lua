-- needs: crawl
-- reclaim: a shard gives up the part of `max_pages` that it has not used. Earlier grants are void from here on: a grant
-- names the generation it is for.
--
-- Reply  {"ok", generation, number of tasks that the shard has accepted}
local known = format('%.0f', sum_of_counts(unpack(TASK_STATES)))
local last = tonumber(call('HGET', P .. 'count', 'generation')) or 0
-- By the clock, so that it grows even if the last second of this server was lost.
local generation = format('%.0f', math.max(last + 1, server_seconds * 1000))
call('HSET', P .. 'count', 'generation', generation, 'allowed', known)
return {'ok', generation, known}
