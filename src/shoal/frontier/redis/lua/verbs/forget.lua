-- needs: seen letters
-- forget: let these keys be put again. Dead letters among them are dropped; leased tasks are not touched.
-- The caller leaves out the keys of tasks that wait.
--
-- ARGV[3…]  key in decimals, key (8 bytes), … for each
-- Reply     {"ok"}, or {"bloom"}: a Bloom filter cannot forget
if bloom_error then return {'bloom'} end
for i = 3, #ARGV, 2 do
  local decimals, key = ARGV[i], ARGV[i + 1]
  local set, ended_in = set_of(bucket_at(low_of_task(key)), decimals)
  if set and call('HEXISTS', P .. 'held', key) == 0 then
    -- First the key: after a crash a letter may be unknown, which repair mends, never a key known without a task.
    call('SREM', set, decimals)
    local value = call('HGET', P .. 'dead', key)
    if value then drop(key, read_dead(value)) end
    if ended_in then count_ended(ended_in, -1) else count('seen', -1) end
    count('forgotten', 1)
  end
end
-- Of several shards the first one is asked last, and raises the epoch for all.
if (crawl.shard or '0') == '0' then call('HINCRBY', P .. 'crawl', 'epoch', 1) end
save_counts()
return {'ok'}
