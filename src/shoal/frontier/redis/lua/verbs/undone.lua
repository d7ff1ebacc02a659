-- needs: crawl task_records
-- undone: the keys of tasks that have not ended or are dead letters, a bounded number per call.
--
-- ARGV[3]  "held", "dead", "later", or the name of a queue, without the prefix
-- ARGV[4]  cursor, "0" to begin; for a queue the order of the last task, or "-inf"
-- Reply    {"ok", next cursor or order, "" at the end, {key (8 bytes), …}}
local MAX_TASKS = 1000
local where, at, found = ARGV[3], ARGV[4], {}

if where == 'held' or where == 'dead' then
  local cursor, page = unpack(call('HSCAN', P .. where, at, 'COUNT', MAX_TASKS))
  for i = 1, #page, 2 do found[#found + 1] = page[i] end
  return {'ok', cursor == '0' and '' or cursor, found}
end
if where == 'later' then
  local cursor, page = unpack(call('ZSCAN', P .. 'later', at, 'COUNT', MAX_TASKS))
  for i = 1, #page, 2 do
    local _, _, task = read_later(page[i])
    found[#found + 1] = key_of(task)
  end
  return {'ok', cursor == '0' and '' or cursor, found}
end
local from = at == '-inf' and at or '(' .. at
local entries = call('ZRANGEBYSCORE', P .. where, from, '+inf', 'WITHSCORES', 'LIMIT', 0, MAX_TASKS)
for i = 1, #entries, 2 do found[#found + 1] = key_of(entries[i]) end
return {'ok', #found == MAX_TASKS and entries[#entries] or '', found}
