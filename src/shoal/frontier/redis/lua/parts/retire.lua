-- needs: seen decimals
-- gives: retire
-- In crawls whose keys expire: move the keys (8 bytes) of ended tasks to the current generation. Call `expire_keys` first, and this
-- before the tasks leave `held` or `dead`: after a crash a key may be in two sets, but not in `seen` without a task.
if ttl then
  function retire(keys)
    if #keys == 0 then return end
    for i = 1, #keys do
      local bucket, decimals = bucket_at(low_of_task(keys[i])), decimals_of(keys[i])
      call('SADD', past_set(generation, bucket), decimals)
      call('SREM', seen_prefix .. bucket, decimals)
    end
    count('seen', -#keys)
    grow_seen(count_ended(generation, #keys))
  end
end
