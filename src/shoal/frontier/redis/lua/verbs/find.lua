-- needs: lanes task_records
-- find: search keys among the waiting tasks, a bounded number of tasks per call.
-- Waiting tasks have no index by key: it would take more memory than the tasks.
--
-- ARGV[3]  "later", or "queues"
-- ARGV[4]  later: cursor, "0" to begin; queues: the order of the last examined task in the first queue, or "-inf"
-- ARGV[5]  number of queues, then their names, without the prefix
-- then     keys (8 bytes)
-- Reply    later:  {"ok", next cursor, "0" at the end, found}
--          queues: {"ok", number of queues done, order to continue with in the next one, found}
--          found:  {key, lane, due in seconds, tries, task, …}
local MAX_TASKS, FIRST_QUEUE = 1000, 6
local where, total = ARGV[3], tonumber(ARGV[5])
local wanted, found = {}, {}
for i = FIRST_QUEUE + total, #ARGV do wanted[ARGV[i]] = true end

local function note(task, lane, due)
  local key = key_of(task)
  if not wanted[key] then return end
  for _, value in ipairs({
    key, lane, format('%.17g', math.max(0, due - now)), call('HGET', P .. 'tries', key) or '', task,
  }) do
    found[#found + 1] = value
  end
end

if where == 'later' then
  local cursor, page = unpack(call('ZSCAN', P .. 'later', ARGV[4], 'COUNT', MAX_TASKS))
  for i = 1, #page, 2 do
    local _, lane, task = read_later(page[i])
    note(task, lane, tonumber(page[i + 1]))
  end
  return {'ok', cursor, found}
end

local order, room = ARGV[4], MAX_TASKS
for i = 1, total do
  local queue, from = ARGV[FIRST_QUEUE + i - 1], order == '-inf' and order or '(' .. order
  local lane = lane_of_queue(queue)
  local entries = call('ZRANGEBYSCORE', P .. queue, from, '+inf', 'WITHSCORES', 'LIMIT', 0, room)
  for j = 1, #entries, 2 do note(entries[j], lane, now) end
  room = room - #entries / 2
  if room <= 0 then return {'ok', i - 1, entries[#entries], found} end
  order = '-inf'
end
return {'ok', total, '-inf', found}
