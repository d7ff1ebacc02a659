-- needs: seen letters
-- forget: make these keys unknown. Dead letters among them are dropped; leased tasks do not change.
-- The caller leaves out the keys of waiting tasks.
--
-- ARGV[3…]  key in decimals, key (8 bytes), … for each
-- Reply     {"ok"}, or {"bloom"}: a Bloom filter cannot forget
if bloom_error then return {'bloom'} end
for i = 3, #ARGV, 2 do
  local decimals, key = ARGV[i], ARGV[i + 1]
  local set, ended_in = set_of(bucket_at(low_of_task(key)), decimals)
  if set and call('HEXISTS', P .. 'held', key) == 0 then
    -- First the key: after a crash a letter may have an unknown key, which repair corrects, but no key is known without a task.
    call('SREM', set, decimals)
    local value = call('HGET', P .. 'dead', key)
    if value then drop(key, read_dead(value)) end
    if ended_in then count_ended(ended_in, -1) else count('seen', -1) end
    count('forgotten', 1)
  end
end
-- The first of several shards is asked last, and raises the epoch for all.
if (crawl.shard or '0') == '0' then call('HINCRBY', P .. 'crawl', 'epoch', 1) end
save_counts()
return {'ok'}
