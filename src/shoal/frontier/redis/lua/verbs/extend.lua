-- include: crawl
-- extend: move the end of leases that still stand.
--
-- ARGV[3]  seconds from now
-- then     key (8 bytes), token, … for each lease
-- Reply    {"ok", a letter per lease: "s" lost, "a" extended}
local keys, changes, fates = {}, {}, {}
for i = 4, #ARGV, 2 do keys[#keys + 1] = ARGV[i] end
local values = #keys > 0 and call('HMGET', P .. 'held', unpack(keys)) or {}
for i = 1, #keys do
  local is_ours = values[i] and unpack_struct('>d', values[i]) == tonumber(ARGV[2 * i + 3])
  if is_ours then
    changes[#changes + 1] = now + tonumber(ARGV[3])
    changes[#changes + 1] = keys[i]
  end
  fates[i] = is_ours and 'a' or 's'
end
if #changes > 0 then call('ZADD', P .. 'leases', unpack(changes)) end
return {'ok', table.concat(fates)}
