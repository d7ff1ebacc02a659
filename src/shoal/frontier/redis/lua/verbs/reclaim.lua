-- needs: crawl
-- reclaim: a shard gives back its unused allowance of `max_pages`. Earlier grants become void: a grant is for one generation.
--
-- Reply  {"ok", generation, number of tasks that the shard has accepted}
local known = format('%.0f', sum_of_counts(unpack(TASK_STATES)))
local last = tonumber(call('HGET', P .. 'count', 'generation')) or 0
-- From the clock, so that it grows even if the last second of this server was lost.
local generation = format('%.0f', math.max(last + 1, server_seconds * 1000))
call('HSET', P .. 'count', 'generation', generation, 'allowed', known)
return {'ok', generation, known}
