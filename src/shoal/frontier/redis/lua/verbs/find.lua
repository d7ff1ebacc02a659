-- include: crawl tasks
-- find: look for keys among the tasks that wait, a bounded number per call.
-- Tasks have no index by key: it would cost more than the tasks.
--
-- ARGV[3]  "later", or "queues"
-- ARGV[4]  later: where to go on, "0" to begin with; queues: the order of the last task looked at in the first lane, or "-inf"
-- ARGV[5]  number of lanes, then their names
-- then     keys (8 bytes)
-- Reply    later:  {"ok", where to go on, "0" at the end, found}
--          queues: {"ok", number of lanes done, order to go on with in the next one, found}
--          found:  {key, lane, due in seconds, tries, task, …}
local MAX_TASKS = 1000
local total = tonumber(ARGV[5])
local wanted, found = {}, {}
for i = 6 + total, #ARGV do wanted[ARGV[i]] = true end

local function note(task, lane, due)
  local key = key_of(task)
  if not wanted[key] then return end
  for _, value in ipairs({
    key, lane, format('%.17g', math.max(0, due - now)), call('HGET', P .. 'tries', key) or '', task,
  }) do
    found[#found + 1] = value
  end
end

if ARGV[3] == 'later' then
  local page = call('ZSCAN', P .. 'later', ARGV[4], 'COUNT', MAX_TASKS)
  for i = 1, #page[2], 2 do
    local _, lane, task = read_later(page[2][i])
    note(task, lane, tonumber(page[2][i + 1]))
  end
  return {'ok', page[1], found}
end

local order, room = ARGV[4], MAX_TASKS
for i = 1, total do
  local from = order == '-inf' and order or '(' .. order
  local entries = call('ZRANGEBYSCORE', P .. 'q:' .. ARGV[5 + i], from, '+inf', 'WITHSCORES', 'LIMIT', 0, room)
  for j = 1, #entries, 2 do note(entries[j], ARGV[5 + i], now) end
  room = room - #entries / 2
  if room <= 0 then return {'ok', i - 1, entries[#entries], found} end
  order = '-inf'
end
return {'ok', total, '-inf', found}
