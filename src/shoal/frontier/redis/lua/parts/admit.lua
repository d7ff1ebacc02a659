-- Letting tasks in: dedup and budgets. Shared by put and settle.
--
-- A kind of task is four values: lane, −priority · 2^31, delay, and the sum of 1 if its URL was merged and 2 if its lane
-- lives in another shard. A task is three: its key in decimals, the number of its kind, the task.
local NO_SHAPE = string.rep('\0', 8)
local kinds = {}
-- The reasons of tasks that are buried at once, in the order of the tasks; nil: tasks wait.
local burial_reasons
local admitted, admitted_list = {}, {}
local refused, merged, duplicates, examined = {}, {}, 0, 0
-- What cannot be decided here, by its place in the call, and as lane and task: tasks of other shards, and those for
-- which this shard has no allowance of the crawl's `max_pages`.
local passed_on, passed_entries = {}, {}
local numbers = call('HMGET', P .. 'count', 'sequence', 'seen', 'queued', 'delayed', 'leased', 'done', 'dead', 'cancelled',
  'allowed')
local sequence, seen, known = tonumber(numbers[1]) or 0, tonumber(numbers[2]) or 0, 0
for i = 3, 8 do known = known + (tonumber(numbers[i]) or 0) end
local allowed, is_spent = tonumber(numbers[9]) or 0, record[13] == record[6]

-- Gives the place behind the last kind.
local function read_kinds(at)
  local total = tonumber(ARGV[at])
  for i = 1, total do
    local first = at + 4 * i - 3
    kinds[tostring(i)] = {
      lane = ARGV[first], offset = assert(tonumber(ARGV[first + 1])), delay = assert(tonumber(ARGV[first + 2])),
      is_merged = ARGV[first + 3] == '1' or ARGV[first + 3] == '3', is_foreign = ARGV[first + 3] > '1',
    }
  end
  return at + 4 * total + 1
end

-- Before the first write: scripts are atomic but do not roll back.
local function check_tasks(at, total)
  for i = at, at + 3 * total - 1, 3 do
    assert(kinds[ARGV[i + 1]] and #ARGV[i + 2] > 18)
  end
end

local function pass_on(kind, task)
  passed_on[#passed_on + 1] = examined
  passed_entries[#passed_entries + 1] = pack('>I2', #kind.lane) .. kind.lane .. task
end

-- The budget that keeps a task out, or nil. A shard without allowance may ask for more ("allowance").
local function refusal(kind, task)
  if crawl.pages > 0 and crawl.is_sharded then
    if known >= allowed then return is_spent and 'max_pages' or 'allowance' end
  elseif crawl.pages > 0 and known >= crawl.pages then
    return 'max_pages'
  end
  if crawl.per_lane > 0 then
    local lane = find_lane(kind.lane)
    if lane and lane.known >= crawl.per_lane then return 'max_per_host' end
  end
  if crawl.per_shape > 0 then
    local shape = string.sub(task, 11, 18)
    if shape ~= NO_SHAPE then
      local accepted = tonumber(call('HGET', P .. 'shape:' .. kind.lane, shape) or 0)
      if accepted >= crawl.per_shape then return 'max_per_shape' end
    end
  end
  return nil
end

local has_budgets = crawl.pages > 0 or crawl.per_lane > 0 or crawl.per_shape > 0

-- `place` is the set for the key, or what the filters know it by.
local function accept(key, kind, task, place)
  local lane = kind.in_lane
  if not lane then
    lane = need_lane(kind.lane)
    kind.in_lane = lane
  end
  if crawl.per_shape > 0 and string.sub(task, 11, 18) ~= NO_SHAPE then
    call('HINCRBY', P .. 'shape:' .. kind.lane, string.sub(task, 11, 18), 1)
  end
  lane.known = lane.known + 1
  known = known + 1
  sequence = sequence + 1
  admitted[key] = place
  admitted_list[#admitted_list + 1] = key
  if burial_reasons then
    local letter = {order = kind.offset + sequence, attempts = 0, lane = kind.lane, task = task}
    bury(letter, burial_reasons[examined + 1], '')
  else
    wait(lane, kind.offset + sequence, task, kind.delay)
  end
end

-- Take in the tasks from ARGV[at] on. Refused and merged ones are noted by their place in the call.
local function admit(at, total)
  local size = half * 2
  for i = at, at + 3 * total - 1, 3 do
    local key, kind, task = ARGV[i], kinds[ARGV[i + 1]], ARGV[i + 2]
    local place = low_of_task(task) % size
    if place >= buckets then place = place - half end
    local bucket = seen_prefix .. place
    local is_known
    if kind.is_foreign then
      is_known = false
    elseif admitted[key] then
      is_known = true
    elseif asked then
      is_known = bloom_knows(string.sub(task, 1, 8))
    else
      is_known = call('SISMEMBER', bucket, key) == 1 or (ttl and generation_of(place, key) ~= nil)
    end
    if is_known then
      duplicates = duplicates + 1
      if kind.is_merged then merged[#merged + 1] = examined end
    else
      local reason = kind.is_foreign and 'foreign' or has_budgets and refusal(kind, task)
      if reason == 'foreign' or reason == 'allowance' then
        pass_on(kind, task)
      elseif reason then
        refused[#refused + 1] = examined
        refused[#refused + 1] = reason
      else
        accept(key, kind, task, asked and string.sub(task, 1, 8) or bucket)
      end
    end
    examined = examined + 1
  end
end

-- Call it after save_queues: a key may be unknown for a task that waits or is buried, never known for one that does not.
local function save_admitted()
  if duplicates > 0 then count('duplicates', duplicates) end
  if #merged > 0 then tally('rejected', 'merged', #merged) end
  for i = 2, #refused, 2 do tally('rejected', refused[i], 1) end
  if #admitted_list == 0 then return end
  for i = 1, #admitted_list do
    local key = admitted_list[i]
    if asked then bloom_learn(admitted[key]) else call('SADD', admitted[key], key) end
  end
  if not burial_reasons then revive() end
  count('seen', #admitted_list)
  count('sequence', #admitted_list)
  grow_seen(seen + #admitted_list)
end
