-- needs: server clock_rules
-- open: create a crawl, or change settings, budgets, rules and pace of an existing one.
--
-- KEYS[1]     the prefix of the crawl's keys
-- ARGV[1]     the time, as in every script (see server)
-- ARGV[2]     the server's run_id
-- ARGV[3]     the crawl's number, which determines its epochs; "" while it is not known whether the crawl exists
-- ARGV[4]     "1" after the lanes were walked, which a change of pace needs (see walk)
-- ARGV[5…7]   interval, cap, needs_rules
-- ARGV[8…11]  pages, per_lane, per_shape, settings
-- ARGV[12…17] only for a new crawl: id, spider, state, feeding, created ("0": now), dedup
-- ARGV[18]    dedup_ttl in seconds, "0.0": none; whether there is one is fixed when the crawl is new
-- ARGV[19]    the budget of cost
-- ARGV[20]    index of the shard, ARGV[21] number of shards: only for a new crawl
-- ARGV[22]    the layout version of a new crawl
-- ARGV[23]    its limits (see stop_if_reached), as JSON; "": none
-- ARGV[24]    "crawl" if it shares no hosts, else "host": only for a new crawl
-- ARGV[25]    its weight at shared hosts
-- ARGV[26]    the shortest interval that its search for a host's pace may reach; 0.0: it does not search
-- ARGV[27]    its weight with its priority
-- Reply       {"none"}: does not exist, a number is needed; {"deleting"}: delete the rest first;
--             {"pace", old interval, old cap, old fastest}: walk the lanes first; {"ttl"}: change the ttl first (see ttl);
--             {"ok", {field, value, …}}
local run_id, number, has_walked = unpack(ARGV, 2, 4)
local interval, cap, needs_rules, pages, per_lane, per_shape, settings = unpack(ARGV, 5, 11)
local id, spider, state, feeding, created, dedup, dedup_ttl, max_cost, shard, shards, layout = unpack(ARGV, 12, 22)
local key, ttl = P .. 'crawl', tonumber(dedup_ttl)
local old = read_fields('crawl', 'state', 'interval', 'cap', 'dedup_ttl', 'clock_last', 'clock_shift', 'pace_scope', 'fastest')

if old.state == 'deleting' then return {'deleting'} end
if not old.state then
  if number == '' then return {'none'} end
  if ttl > 0 then call('HSET', P .. 'turns', 'generation', 0, 'turned', format('%.17g', now)) end
  call('HSET', key, 'id', id, 'spider', spider, 'state', state, 'feeding', feeding, 'created',
    tonumber(created) == 0 and now or tonumber(created), 'number', number, 'epoch', format('%.0f', number * EPOCHS_PER_CRAWL),
    'run', run_id, 'buckets', 1, 'dedup', dedup, 'layout', layout, 'pace_scope', ARGV[24])
  if shards ~= '1' then call('HSET', key, 'shard', shard, 'shards', shards) end
  -- Only the first shard knows whether the crawl is fed.
  if shard ~= '0' then call('HSET', key, 'feeding', 0) end
  if ttl > 0 then call('HSET', key, 'dedup_ttl', dedup_ttl) end
elseif has_walked ~= '1' and (tonumber(old.interval) ~= tonumber(interval) or tonumber(old.cap) ~= tonumber(cap)
  or (tonumber(old.fastest or 0) ~= tonumber(ARGV[26]))) then
  return {'pace', old.interval, old.cap, old.fastest or '0'}
elseif old.dedup_ttl and ttl > 0 and tonumber(old.dedup_ttl) ~= ttl then
  return {'ttl'}
else
  -- As every script that may change a crawl does (see crawl).
  local _, shift = clock_rules.reckon(now, tonumber(old.clock_last) or 0, tonumber(old.clock_shift) or 0, expected)
  if shift ~= (tonumber(old.clock_shift) or 0) then call('HSET', key, 'clock_shift', format('%.17g', shift)) end
end
call('HSET', key, 'interval', interval, 'cap', cap, 'needs_rules', needs_rules, 'pages', pages, 'per_lane', per_lane,
  'per_shape', per_shape, 'settings', settings, 'max_cost', max_cost, 'limits', ARGV[23], 'weight', ARGV[25], 'fastest', ARGV[26], 'share',
  (old.pace_scope or ARGV[24]) == 'crawl' and '' or ARGV[27])
return {'ok', call('HGETALL', key)}
