-- Keys in decimals, as sets keep them, and what becomes of the keys of tasks that end.
-- Eight bytes as a signed number in decimals. It does not fit into Lua's numbers: three limbs of seven digits do.
local function decimals_of(key)
  local words = {unpack_struct('>I2I2I2I2', key)}
  local is_negative = words[1] >= 32768
  if is_negative then
    local carry = 1
    for i = 4, 1, -1 do
      words[i] = 65535 - words[i] + carry
      carry = words[i] == 65536 and 1 or 0
      words[i] = words[i] % 65536
    end
  end
  local low, middle, high = 0, 0, 0
  for i = 1, 4 do
    low = low * 65536 + words[i]
    middle = middle * 65536 + math.floor(low / 10000000)
    high = high * 65536 + math.floor(middle / 10000000)
    low, middle = low % 10000000, middle % 10000000
  end
  local text = string.gsub(format('%.0f%07.0f%07.0f', high, middle, low), '^0+(%d)', '%1')
  return is_negative and '-' .. text or text
end

-- The tasks with these keys (8 bytes) end: where keys expire, their time begins. Call `turn` first, and this before the
-- tasks leave `held` or `dead`: after a crash a key may be in two sets, never in `seen` without a task.
local function retire(keys)
  if not ttl or #keys == 0 then return end
  for i = 1, #keys do
    local place, decimals = place_at(low_of_task(keys[i])), decimals_of(keys[i])
    call('SADD', past_set(generation, place), decimals)
    call('SREM', seen_prefix .. place, decimals)
  end
  count('seen', -#keys)
  grow_seen(count_ended(generation, #keys))
end
