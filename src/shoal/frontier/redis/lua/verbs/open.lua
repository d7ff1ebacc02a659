-- open: create a crawl, or let one that exists take over settings, budgets, rules and pace.
--
-- KEYS[1]     the prefix of the crawl's keys
-- ARGV[1]     the time in seconds, for tests; "" is the server's own
-- ARGV[2]     the server's run_id
-- ARGV[3]     the crawl's number, from which its epochs follow; "" while it is not known whether the crawl exists
-- ARGV[4]     "1" when the lanes were walked, which a change of pace takes (see walk)
-- ARGV[5…7]   interval, cap, needs_rules
-- ARGV[8…11]  pages, per_lane, per_shape, settings
-- ARGV[12…17] of a new crawl alone: id, spider, state, feeding, created ("0" is now), dedup
-- ARGV[18]    dedup_ttl in seconds, "0.0" is none; whether there is one is decided by a new crawl alone
-- ARGV[19]    the budget of cost
-- ARGV[20]    which shard, ARGV[21] of how many: of a new crawl alone
-- ARGV[22]    the layout version of a new crawl
-- Reply       {"none"}: does not exist, a number is needed; {"deleting"}: finish that first;
--             {"pace", old interval, old cap}: walk the lanes first; {"ttl"}: change that first (see ttl); {"ok", {field, value, …}}
local EPOCHS = 1048576
local call, key = redis.call, KEYS[1] .. 'crawl'
local server_time = call('TIME')
local ttl = tonumber(ARGV[18])
local now = tonumber(ARGV[1]) or server_time[1] + server_time[2] / 1000000
local old = call('HMGET', key, 'state', 'interval', 'cap', 'dedup_ttl')

if old[1] == 'deleting' then return {'deleting'} end
if not old[1] then
  if ARGV[3] == '' then return {'none'} end
  local created = tonumber(ARGV[16])
  if ttl > 0 then call('HSET', KEYS[1] .. 'turns', 'generation', 0, 'turned', string.format('%.17g', now)) end
  call('HSET', key, 'id', ARGV[12], 'spider', ARGV[13], 'state', ARGV[14], 'feeding', ARGV[15], 'created',
    created == 0 and now or created, 'number', ARGV[3], 'epoch', string.format('%.0f', ARGV[3] * EPOCHS), 'run', ARGV[2],
    'buckets', 1, 'dedup', ARGV[17], 'layout', ARGV[22])
  if ARGV[21] ~= '1' then call('HSET', key, 'shard', ARGV[20], 'shards', ARGV[21]) end
  -- Whether a source feeds the crawl is for its first shard to know.
  if ARGV[20] ~= '0' then call('HSET', key, 'feeding', 0) end
  if ttl > 0 then call('HSET', key, 'dedup_ttl', ARGV[18]) end
elseif (tonumber(old[2]) ~= tonumber(ARGV[5]) or tonumber(old[3]) ~= tonumber(ARGV[6])) and ARGV[4] ~= '1' then
  return {'pace', old[2], old[3]}
elseif old[4] and ttl > 0 and tonumber(old[4]) ~= ttl then
  return {'ttl'}
end
call('HSET', key, 'interval', ARGV[5], 'cap', ARGV[6], 'needs_rules', ARGV[7], 'pages', ARGV[8], 'per_lane', ARGV[9],
  'per_shape', ARGV[10], 'settings', ARGV[11], 'max_cost', ARGV[19])
return {'ok', call('HGETALL', key)}
