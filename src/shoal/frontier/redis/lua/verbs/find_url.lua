-- needs: lanes task_records
-- find_url: search tasks with a URL, a bounded number of tasks per call.
-- Every record of a task ends with its URL, so none is decoded; a longer URL may have the same end.
--
-- ARGV[3]  "held", "dead", "later", or "queue"
-- ARGV[4]  cursor, "0" to begin; queue: the order of the last examined task, or "-inf"
-- ARGV[5]  the URL
-- ARGV[6]  queue: its name, without the prefix
-- Reply    {"ok", where to continue, "" at the end, found}
--          found: held and dead: {key, …}; later and queue: {key, lane, due in seconds, tries, task, …}, as in find
local MAX_TASKS = 1000
local where, from, url = ARGV[3], ARGV[4], ARGV[5]
local found = {}

local function ends_in_url(record)
  return string.sub(record, -#url) == url
end

local function note(task, lane, due)
  local key = key_of(task)
  for _, value in ipairs({
    key, lane, format('%.17g', math.max(0, due - now)), call('HGET', P .. 'tries', key) or '', task,
  }) do
    found[#found + 1] = value
  end
end

if where == 'queue' then
  local lane = lane_of_queue(ARGV[6])
  local start = from == '-inf' and from or '(' .. from
  local entries = call('ZRANGEBYSCORE', P .. ARGV[6], start, '+inf', 'WITHSCORES', 'LIMIT', 0, MAX_TASKS)
  for i = 1, #entries, 2 do
    if ends_in_url(entries[i]) then note(entries[i], lane, now) end
  end
  return {'ok', #entries == 2 * MAX_TASKS and entries[#entries] or '', found}
end

local scan = where == 'later' and 'ZSCAN' or 'HSCAN'
local cursor, page = unpack(call(scan, P .. where, from, 'COUNT', MAX_TASKS))
for i = 1, #page, 2 do
  if where == 'later' then
    if ends_in_url(page[i]) then
      local _, lane, task = read_later(page[i])
      note(task, lane, tonumber(page[i + 1]))
    end
  elseif ends_in_url(page[i + 1]) then
    found[#found + 1] = page[i]
  end
end
return {'ok', cursor == '0' and '' or cursor, found}
