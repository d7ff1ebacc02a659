-- needs: lanes task_records
-- land: the requests of these leases were answered: they no longer count in the caps of their lanes. The leases stand. Leases that are
-- lost or have landed before are ignored.
--
-- ARGV[3]  key (8 bytes), token, … for each lease
-- Reply    {"ok"}
local FIRST = 3
local keys, tokens, landed, is_landed = {}, {}, {}, {}
for i = FIRST, #ARGV, 2 do keys[#keys + 1], tokens[#tokens + 1] = ARGV[i], tonumber(ARGV[i + 1]) end
local values = #keys > 0 and call('HMGET', P .. 'held', unpack(keys)) or {}
for i = 1, #keys do
  local value = values[i]
  -- The record begins with the token (see task_records).
  if value and unpack_struct('>d', value) == tokens[i] and not is_landed[keys[i]] then
    is_landed[keys[i]] = true
    local lane = need_lane(read_held(value).lane)
    lane.in_flight = lane.in_flight - 1
    landed[#landed + 1] = keys[i]
    landed[#landed + 1] = pack('>d', -tokens[i]) .. string.sub(value, 9)
  end
end
if #landed > 0 then call('HSET', P .. 'held', unpack(landed)) end
save_lanes()
return {'ok'}
