-- needs: server
-- aside: set aside records that cannot be read, each only if it has not changed since the caller read it. The crawl must be repaired
-- afterwards (see repair), as counters still count the records. Needs no readable crawl.
--
-- ARGV[3…]  for each record: the name of its key, its field or member, the value that was read, "1" if it was a task.
--           An empty field: the whole key, of any type
-- Reply     number of records set aside
--
-- bad       length of the name (2 bytes), name of the key, bytes of the record, at most LONGEST_BAD; the newest MOST_BAD
local taken = 0

local function keep(name, raw, is_task)
  call('LPUSH', P .. 'bad', pack('>I2', #name) .. name .. string.sub(raw, 1, LONGEST_BAD))
  call('LTRIM', P .. 'bad', 0, MOST_BAD - 1)
  call('HINCRBY', P .. 'notes', SET_ASIDE .. string.match(name, '^[^:]*'), 1)
  if is_task then call('HINCRBY', P .. 'count', 'aside', 1) end
  taken = taken + 1
end

for i = 3, #ARGV, 4 do
  local name, field, seen, is_task = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3] == '1'
  local key = P .. name
  local kind = call('TYPE', key).ok
  if field == '' then
    if kind ~= 'none' then
      local raw = call('DUMP', key) or ''
      call('UNLINK', key)
      keep(name, raw, is_task)
    end
  elseif kind == 'hash' and call('HGET', key, field) == seen then
    call('HDEL', key, field)
    keep(name, field .. seen, is_task)
  elseif kind == 'zset' and call('ZREM', key, field) == 1 then
    keep(name, field, is_task)
  end
end
return taken
