-- The set that holds a key, and the generation if it is one of those; nil when the key is not known.
local function set_of(place, decimals)
  if call('SISMEMBER', seen_prefix .. place, decimals) == 1 then return seen_prefix .. place end
  local number = ttl and generation_of(place, decimals)
  if number then return past_set(number, place), number end
  return nil
end
