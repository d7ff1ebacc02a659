-- include: crawl lanes tasks bloom seen letters
-- forget: let these keys be put again. Dead letters among them are dropped; leased tasks are not touched.
-- The caller leaves out the keys of tasks that wait.
--
-- ARGV[3…]  key in decimals, key (8 bytes), … for each
-- Reply     {"ok"}, or {"bloom"}: a Bloom filter cannot forget
if asked then return {'bloom'} end
local forgotten = 0
for i = 3, #ARGV, 2 do
  local decimals, key = ARGV[i], ARGV[i + 1]
  local bucket = bucket_at(low_of_task(key))
  if call('HEXISTS', P .. 'held', key) == 0 and call('SISMEMBER', bucket, decimals) == 1 then
    local value = call('HGET', P .. 'dead', key)
    if value then drop(key, read_dead(value)) end
    call('SREM', bucket, decimals)
    forgotten = forgotten + 1
  end
end
count('seen', -forgotten)
count('forgotten', forgotten)
-- Of several shards the first one is asked last, and raises the epoch for all.
if (call('HGET', P .. 'crawl', 'shard') or '0') == '0' then call('HINCRBY', P .. 'crawl', 'epoch', 1) end
save_counts()
return {'ok'}
