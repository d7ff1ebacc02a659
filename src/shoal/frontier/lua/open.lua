-- open: create a crawl, or let one that exists take over settings, budgets, rules and pace.
--
-- KEYS[1]     the prefix of the crawl's keys
-- ARGV[1]     the time in seconds, for tests; "" is the server's own
-- ARGV[2]     the server's run_id
-- ARGV[3]     the crawl's number, from which its epochs follow; "" while it is not known whether the crawl exists
-- ARGV[4]     "1" when the lanes were walked, which a change of pace takes (see walk)
-- ARGV[5…7]   interval, cap, needs_rules
-- ARGV[8…11]  pages, per_lane, per_shape, settings
-- ARGV[12…]   of a new crawl alone: id, spider, state, feeding, created ("0" is now), dedup, which shard, of how many
-- Reply       {"none"}: does not exist, a number is needed; {"deleting"}: finish that first;
--             {"pace", old interval, old cap}: walk the lanes first; {"ok", {field, value, …}}
local EPOCHS = 1048576
local call, key = redis.call, KEYS[1] .. 'crawl'
local server_time = call('TIME')
local now = tonumber(ARGV[1]) or server_time[1] + server_time[2] / 1000000
local old = call('HMGET', key, 'state', 'interval', 'cap')

if old[1] == 'deleting' then return {'deleting'} end
if not old[1] then
  if ARGV[3] == '' then return {'none'} end
  local created = tonumber(ARGV[16])
  call('HSET', key, 'id', ARGV[12], 'spider', ARGV[13], 'state', ARGV[14], 'feeding', ARGV[15], 'created',
    created == 0 and now or created, 'number', ARGV[3], 'epoch', string.format('%.0f', ARGV[3] * EPOCHS), 'run', ARGV[2],
    'buckets', 1, 'dedup', ARGV[17])
  if ARGV[19] ~= '1' then call('HSET', key, 'shard', ARGV[18], 'shards', ARGV[19]) end
  -- Whether a source feeds the crawl is for its first shard to know.
  if ARGV[18] ~= '0' then call('HSET', key, 'feeding', 0) end
elseif (tonumber(old[2]) ~= tonumber(ARGV[5]) or tonumber(old[3]) ~= tonumber(ARGV[6])) and ARGV[4] ~= '1' then
  return {'pace', old[2], old[3]}
end
call('HSET', key, 'interval', ARGV[5], 'cap', ARGV[6], 'needs_rules', ARGV[7], 'pages', ARGV[8], 'per_lane', ARGV[9],
  'per_shape', ARGV[10], 'settings', ARGV[11])
return {'ok', call('HGETALL', key)}
