-- needs: presence
-- extend: renew leases that still stand.
--
-- ARGV[3]  seconds from now
-- then     key (8 bytes), token, … for each lease
-- Reply    {"ok", a letter per lease: "s" lost, "a" extended}
local ends, keys, tokens, changes, fates = now + tonumber(ARGV[3]), {}, {}, {}, {}
for i = 4, #ARGV, 2 do keys[#keys + 1], tokens[#tokens + 1] = ARGV[i], tonumber(ARGV[i + 1]) end
local values = #keys > 0 and call('HMGET', P .. 'held', unpack(keys)) or {}
for i = 1, #keys do
  -- A leased task begins with its token, negative when its request has landed (see task_records).
  local is_ours = values[i] and math.abs(unpack_struct('>d', values[i])) == tokens[i]
  if is_ours then
    changes[#changes + 1] = ends
    changes[#changes + 1] = keys[i]
  end
  fates[i] = is_ours and 'a' or 's'
end
note_presence(tonumber(ARGV[3]))
if #changes > 0 then call('ZADD', P .. 'leases', unpack(changes)) end
return {'ok', table.concat(fates)}
