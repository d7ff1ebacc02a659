-- needs: admit retire outbox
-- settle: end leases by results. Each result is applied whole or, if its lease was lost, not at all.
--
-- ARGV[3]  number of labels, the labels (see admit); then number of results, and for each:
--          verb, key (8 bytes), token, lane's update ("0": none; "1" and eight values (see update_lane); "2", those and the reason; "3",
--          those and the learnt interval), report on the exit (see exit_use) or ""; then by verb
--   done     outcome; number of rejections, for each: reason, count; the list of found tasks (see admit)
--   again    as done; then lane, kind or "", task, delay: replaced by this task with the same key, due after the delay
--   found    the list of found tasks: a part of a long one, sent before its result; the lease stands
--   retry    reason, delay, "1" if free
--   dead     reason, detail
--   release
--   hand     lane, kind or "", task: replaced by this task, which has the same key
--   check    only whether the lease stands: the result cannot be encoded
--          then number of sets of notes, and for each: the indexes of its results (two bytes each), number of notes, for each: name,
--          count. Most pages have the same notes, which are sent and read once
-- Reply    {"ok", epoch, a letter per result: "s" stale, "a" applied or standing, "k" standing: too many kinds, {index, reason, …}
--          refused, {index, …} merged, {index, …} in the outbox, last number there, {index, …} known before}
-- ARGV[3] is the number of labels.
local at = read_labels(3)
local results = tonumber(ARGV[at])
at = at + 1

-- Read the next result: its values, and the indexes in ARGV where its lists begin. Checked before the first write.
local function read_result()
  -- All fields at once: a table that grows field by field takes three times as long. Eight at most: a ninth doubles its size.
  local result = {
    verb = ARGV[at], key = ARGV[at + 1], token = assert(tonumber(ARGV[at + 2])), update = nil, report = nil,
    rejected = nil, total = nil, found = nil,
  }
  at = at + 3
  if ARGV[at] ~= '0' then
    result.update = at + 1
    at = at + (ARGV[at] == '3' and 10 or ARGV[at] == '2' and 9 or 8)
  end
  at = at + 1
  if ARGV[at] ~= '' then
    result.report = ARGV[at]
    assert(verdict_of(result.report))
  end
  at = at + 1
  local is_done = result.verb == 'done' or result.verb == 'again'
  if is_done then
    result.rejected = at + 2
    local rejections = tonumber(ARGV[at + 1])
    for i = 1, rejections do assert(tonumber(ARGV[at + 1 + 2 * i])) end
    at = at + 2 + 2 * rejections
  end
  if is_done or result.verb == 'found' then
    result.found = at
    result.total, at = check_tasks(at)
  elseif result.verb == 'retry' then
    result.reason, result.delay, result.is_free = ARGV[at], assert(tonumber(ARGV[at + 1])), ARGV[at + 2] == '1'
    at = at + 3
  elseif result.verb == 'dead' then
    result.reason, result.detail = ARGV[at], ARGV[at + 1]
    at = at + 2
  end
  if result.verb == 'hand' or result.verb == 'again' then
    result.lane, result.kind, result.task = ARGV[at], ARGV[at + 1] ~= '' and ARGV[at + 1] or nil, ARGV[at + 2]
    at = at + 3
  end
  if result.verb == 'again' then
    result.delay = assert(tonumber(ARGV[at]))
    at = at + 1
  end
  return result
end

local read, keys = {}, {}
for i = 1, results do
  read[i] = read_result()
  keys[i] = read[i].key
end

-- Index of a result → where in ARGV its set of notes begins.
local set_of = {}
at = at + 1
for _ = 1, tonumber(ARGV[at - 1]) do
  local carriers, number = ARGV[at], tonumber(ARGV[at + 1])
  for i = 1, number do assert(tonumber(ARGV[at + 1 + 2 * i])) end
  for i = 1, #carriers, 2 do
    local high, low = string.byte(carriers, i, i + 1)
    set_of[256 * high + low] = at + 1
  end
  at = at + 2 + 2 * number
end
local helds = results > 0 and call('HMGET', P .. 'held', unpack(keys)) or {}

local outcomes, rejected, noted, has_ended, finished = {}, {}, {}, {}, {}

-- Count outcome and rejections of a done page, and accept its found tasks; the task itself is done or replaced.
local function harvest(result)
  local first = result.rejected
  local outcome = ARGV[first - 2]
  outcomes[outcome] = (outcomes[outcome] or 0) + 1
  for i = first, first + 2 * tonumber(ARGV[first - 1]) - 1, 2 do
    rejected[ARGV[i]] = (rejected[ARGV[i]] or 0) + tonumber(ARGV[i + 1])
  end
  admit(result.found)
end

local function retry(lane, held, result)
  local attempts, free_retries = task_rules.attempts_after_retry(held.attempts, held.free_retries, max_attempts_of(held.task),
    result.is_free)
  if not attempts then
    bury(held, result.reason, '')
    return
  end
  count('retried', 1)
  held.attempts, held.losses, held.free_retries, held.reason = attempts, 0, free_retries, result.reason
  put_back(lane, held, result.delay)
end

local function finish(result)
  count('done', 1)
  finished[#finished + 1] = result.key
  harvest(result)
end

-- Replace the task by another one, for its next stage or its next visit, with all its attempts.
local function go_on(held, result)
  held.task, held.lane = result.task, result.lane
  held.attempts, held.losses, held.free_retries, held.reason = 0, 0, 0, ''
  if result.kind then learn_kind(result.kind) end
  visits.await(need_lane(result.lane), held, result.delay or 0)
end

local function apply(held, result, set)
  if result.verb == 'found' then
    admit(result.found)
    return
  elseif result.verb == 'check' then
    return
  end
  has_ended[result.key] = true
  local lane = need_lane(held.lane)
  local update = result.update
  if update then
    local how = ARGV[update - 1]
    update_lane(lane, update, how ~= '1' and ARGV[update + 8] or '', how == '3' and ARGV[update + 9])
  end
  end_lease(lane, held, result.report)
  if set then noted[set] = (noted[set] or 0) + 1 end
  if result.verb == 'done' then
    finish(result)
  elseif result.verb == 'retry' then
    retry(lane, held, result)
  elseif result.verb == 'dead' then
    bury(held, result.reason, result.detail)
  elseif result.verb == 'hand' then
    go_on(held, result)
  elseif result.verb == 'again' then
    go_on(held, result)
    harvest(result)
  else
    release(lane, held)
  end
end

-- If there are several, the uses of a lane's exits are read at once.
do
  local index_used, indexes_used = {}, {}
  for i = 1, results do
    local held = helds[i] and read_held(helds[i])
    if held and held.exit_index ~= NO_INDEX then
      local name, index = held.lane, held.exit_index
      local indexes = indexes_used[name]
      if indexes then
        indexes[#indexes + 1] = index
      elseif index_used[name] then
        indexes_used[name] = {index_used[name], index}
      else
        index_used[name] = index
      end
    end
    helds[i] = held
  end
  for name, indexes in pairs(indexes_used) do read_uses(need_lane(name), indexes) end
end

local fates = {}
for i = 1, results do
  local result = read[i]
  local held = not has_ended[result.key] and helds[i]
  local stands = held and held.token == result.token
  -- A check changes nothing.
  if ttl and (not stands or result.verb ~= 'check') then expire_keys() end
  if stands and result.kind and not has_room_for(result.kind) then
    fates[i] = 'k'
  elseif stands then
    apply(held, result, set_of[i])
    fates[i] = 'a'
  else
    if result.verb ~= 'found' then count('stale', 1) end
    examined = examined + (result.total or 0)
    fates[i] = 's'
  end
end
local last_posted = save_outbox(passed_entries)
save_queues()
save_admitted()
if ttl then retire(finished) end
save_ended()
for name, amount in pairs(outcomes) do tally('outcomes', name, amount) end
for reason, amount in pairs(rejected) do count_rejected(reason, amount) end
do
  local notes = {}
  for set, times in pairs(noted) do
    for i = set + 1, set + 2 * tonumber(ARGV[set]), 2 do
      notes[ARGV[i]] = (notes[ARGV[i]] or 0) + times * tonumber(ARGV[i + 1])
    end
  end
  for name, amount in pairs(notes) do tally('notes', name, amount) end
end
save_lanes()
save_counts()
return {'ok', crawl.epoch, table.concat(fates), refused, merged, passed_on, last_posted, known_before}
