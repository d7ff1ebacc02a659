-- Where keys expire: the tasks with these keys (8 bytes) end, and the keys' time begins. Call `turn` first, and this before
-- the tasks leave `held` or `dead`: after a crash a key may be in two sets, never in `seen` without a task.
local retire

if ttl then
  function retire(keys)
    if #keys == 0 then return end
    for i = 1, #keys do
      local place, decimals = place_at(low_of_task(keys[i])), decimals_of(keys[i])
      call('SADD', past_set(generation, place), decimals)
      call('SREM', seen_prefix .. place, decimals)
    end
    count('seen', -#keys)
    grow_seen(count_ended(generation, #keys))
  end
end
