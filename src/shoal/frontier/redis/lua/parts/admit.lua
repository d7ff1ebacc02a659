-- needs: tasks seen visits
-- gives: read_labels check_tasks admit save_admitted count_rejected burial_reasons admitted_list refused merged known_before examined
-- gives: passed_on passed_entries known allowed is_spent
-- Storing new tasks: dedup and budgets. Shared by put and settle.
--
-- A label has five values that several tasks share: lane, −priority · 2^31, delay, flags (1: the URLs were merged, 2: the lane is in
-- another shard, 4: a put hastens the visit of a known key), kind ("" for http). A list of tasks is: their number, the number of
-- packets, the packets. In a packet, each task follows the number of its label (2 bytes), its own length (4), the low bits of its key
-- (3), and the length (1) and digits of its key. Packets, because a value per task would be a string of its own for Redis and Lua:
-- most links are known, and their tasks are never extracted.
--
-- shape:LANE  path shape → number of tasks accepted; only where max_per_shape is set
local LINK, LINK_HEAD, LEAST_TASK = '>I2I4I3Bc0', '>I2I4I3B', 18
local NO_SHAPE = string.rep('\0', 8)
local labels = {}
-- The reasons of tasks that are stored as dead letters, in their order; nil: tasks wait.
burial_reasons = nil
local admitted = {}
admitted_list = {}
refused, merged, known_before, examined = {}, {}, {}, 0
-- Tasks that this shard cannot decide on, by their index in the call, and as entries of the outbox: tasks of other shards, and
-- tasks for which this shard has no allowance of the crawl's `max_pages`.
passed_on, passed_entries = {}, {}
local stored = read_fields('count', 'sequence', 'seen', 'allowed', unpack(TASK_STATES))
local sequence, seen = tonumber(stored.sequence) or 0, tonumber(stored.seen) or 0
known = 0
for i = 1, #TASK_STATES do known = known + (tonumber(stored[TASK_STATES[i]]) or 0) end
allowed, is_spent = tonumber(stored.allowed) or 0, tonumber(crawl.spent) == crawl.pages

-- Gives the index of the argument after the last label.
function read_labels(at)
  local total = tonumber(ARGV[at])
  for i = 1, total do
    local lane, offset, delay, flags, kind = unpack(ARGV, at + 5 * i - 4, at + 5 * i)
    labels[i] = {
      lane = lane, offset = assert(tonumber(offset)), delay = assert(tonumber(delay)), is_merged = tonumber(flags) % 2 == 1,
      is_foreign = tonumber(flags) % 4 >= 2, hastens = flags >= '4', kind = kind ~= '' and kind or nil,
    }
  end
  return at + 5 * total + 1
end

-- Before the first write: scripts are atomic but do not roll back. Gives the number of tasks, and the index after the last packet.
function check_tasks(at)
  local total, packets, found = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), 0
  for i = at + 2, at + 1 + packets do
    local packet, first = ARGV[i], 1
    local size = #packet
    while first <= size do
      local label, length, _, digits, behind = unpack_struct(LINK_HEAD, packet, first)
      first = behind + digits + length
      assert(labels[label] and length > LEAST_TASK and first <= size + 1)
      found = found + 1
    end
  end
  assert(found == total)
  return total, at + 2 + packets
end

local function pass_on(label, task)
  passed_on[#passed_on + 1] = examined
  passed_entries[#passed_entries + 1] = pack('>I2', #label.lane) .. label.lane .. task
end

local function shape_of(task)
  return string.sub(task, 11, 18)
end

-- The budget that refuses a task, or nil. A shard without allowance may ask for more ("allowance").
local function refusal(label, task)
  if crawl.pages > 0 and is_sharded then
    if known >= allowed then return is_spent and MAX_PAGES or 'allowance' end
  elseif crawl.pages > 0 and known >= crawl.pages then
    return MAX_PAGES
  end
  if crawl.per_lane > 0 then
    local lane = find_lane(label.lane)
    if lane and lane.known >= crawl.per_lane then return MAX_PER_HOST end
  end
  if crawl.per_shape > 0 and shape_of(task) ~= NO_SHAPE then
    local accepted = tonumber(call('HGET', P .. 'shape:' .. label.lane, shape_of(task)) or 0)
    if accepted >= crawl.per_shape then return MAX_PER_SHAPE end
  end
  return nil
end

local has_budgets = crawl.pages > 0 or crawl.per_lane > 0 or crawl.per_shape > 0

-- The key is written later (see save_admitted): `learnt_in` is its set, or its eight bytes for the Bloom filters.
local function accept(key, label, task, learnt_in)
  local lane = label.in_lane
  if not lane then
    lane = need_lane(label.lane)
    label.in_lane = lane
  end
  if crawl.per_shape > 0 and shape_of(task) ~= NO_SHAPE then
    call('HINCRBY', P .. 'shape:' .. label.lane, shape_of(task), 1)
  end
  if label.kind then learn_kind(label.kind) end
  lane.known = lane.known + 1
  known = known + 1
  sequence = sequence + 1
  admitted[key] = learnt_in
  admitted_list[#admitted_list + 1] = key
  if burial_reasons then
    local letter = {order = label.offset + sequence, attempts = 0, lane = label.lane, task = task}
    bury(letter, burial_reasons[examined + 1], '')
  else
    wait(lane, label.offset + sequence, task, label.delay, label.kind)
  end
end

local function is_known(key, set, bucket, packet, first)
  if admitted[key] then return true end
  if bloom_error then return bloom_knows(string.sub(packet, first, first + 7)) end
  return call('SISMEMBER', set, key) == 1 or (ttl and generation_of(bucket, key) ~= nil)
end

-- Accept a task whose key is not known here, or a task of another shard.
local function take_in(key, label, task, set)
  local reason = label.is_foreign and 'foreign' or label.kind and not has_room_for(label.kind) and TOO_MANY_KINDS
    or has_budgets and refusal(label, task)
  if reason == 'foreign' or reason == 'allowance' then
    pass_on(label, task)
  elseif reason then
    refused[#refused + 1] = examined
    refused[#refused + 1] = reason
  else
    accept(key, label, task, bloom_error and key_of(task) or set)
  end
end

local function admit_packet(packet)
  local size, first, last = half * 2, 1, #packet
  while first <= last do
    local number, length, low, key, behind = unpack_struct(LINK, packet, first)
    local label = labels[number]
    -- As bucket_at does it; a call for every link would cost more.
    local bucket = low % size
    if bucket >= buckets then bucket = bucket - half end
    local set = format(seen_format, bucket)
    first = behind + length
    if not label.is_foreign and is_known(key, set, bucket, packet, behind) then
      known_before[#known_before + 1] = examined
      if label.is_merged then merged[#merged + 1] = examined end
      if label.hastens then visits.hasten(string.sub(packet, behind, behind + 7)) end
    else
      take_in(key, label, string.sub(packet, behind, first - 1), set)
    end
    examined = examined + 1
  end
end

-- Accept the list of tasks that begins at ARGV[at]. Refused and merged tasks are noted by their index in the call.
function admit(at)
  for i = at + 2, at + 1 + tonumber(ARGV[at + 1]) do admit_packet(ARGV[i]) end
end

-- Call it after save_queues: after a crash, the key of a waiting or dead task may be unknown, but no key known without a task.
function save_admitted()
  visits.save()
  if #known_before > 0 then count('duplicates', #known_before) end
  if #merged > 0 then tally('rejected', MERGED, #merged) end
  for i = 2, #refused, 2 do tally('rejected', refused[i], 1) end
  if #admitted_list == 0 then return end
  for i = 1, #admitted_list do
    local key = admitted_list[i]
    if bloom_error then bloom_learn(admitted[key]) else call('SADD', admitted[key], key) end
  end
  if not burial_reasons then revive() end
  count('seen', #admitted_list)
  count('sequence', #admitted_list)
  grow_seen(seen + #admitted_list)
end

-- Count links that the caller rejected; duplicates have their own counter.
function count_rejected(reason, amount)
  if reason == 'duplicate' then count('duplicates', amount) else tally('rejected', reason, amount) end
end
