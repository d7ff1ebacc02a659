-- needs: seen
-- know: mark keys as known without a task. Keys known before are not changed. Idempotent.
--
-- ARGV[3]  "learn", or "ask": only read which of them are known
-- ARGV[4…] key in decimals, key (8 bytes), "1" if a new key is counted for people; … for each
-- Reply    {"keys"}: the crawl's keys were dropped; {"ok", {"1" if the key was not known here, …}, number of counted keys}
--
-- Field `untasked` of count: keys of this shard that became known without a task.
if crawl.keys then return {'keys'} end
local learns = ARGV[3] == 'learn'
if ttl and learns then expire_keys() end
local news, learnt, noted = {}, 0, 0

local function learn(key, decimals, bucket)
  if bloom_error then
    bloom_learn(key)
  else
    call('SADD', ttl and past_set(generation, bucket) or seen_prefix .. bucket, decimals)
  end
  learnt = learnt + 1
end

for i = 4, #ARGV, 3 do
  local decimals, key, counts = ARGV[i], ARGV[i + 1], ARGV[i + 2] == '1'
  local bucket, is_known = bucket_at(low_of_task(key)), nil
  if bloom_error then is_known = bloom_knows(key) else is_known = set_of(bucket, decimals) end
  news[#news + 1] = is_known and '0' or '1'
  if learns and not is_known then
    learn(key, decimals, bucket)
    if counts then noted = noted + 1 end
  end
end
if learnt > 0 then
  count('untasked', learnt)
  if noted > 0 then tally('notes', KNOWN_KEYS, noted) end
  if ttl then
    grow_seen(count_ended(generation, learnt))
  else
    count('seen', learnt)
    grow_seen((tonumber(call('HGET', P .. 'count', 'seen')) or 0) + learnt)
  end
  save_counts()
end
return {'ok', news, noted}
