-- needs: tasks seen decimals other_lanes
-- repair: after a restart of the server, make the crawl's data consistent again, a bounded part per call.
-- A crash may have kept only the first of a script's writes. Scripts write in an order that leaves a task in two places, or with an
-- unknown key, but never in none; here it gets back to one place: leased before queued before delayed before dead.
-- Meanwhile every other verb that changes something is refused.
--
-- ARGV[3]  the caller: the server's run_id and a name
-- ARGV[4]  step: begin, renew, reset, exits, held, leases, later, dead, graves, queues, seen, kinds, clear, lanes, finish
-- ARGV[5]  begin and finish: the server's run_id; lanes: seconds to rest; queues: the order of the last examined task in the
--          first queue, or "-inf"; else the cursor, "0" to begin
-- ARGV[6…] held: seconds a lease lasts; reset, lanes: names of lanes; queues: names of queues, without the prefix; finish: number of
--          waiting tasks, number of keys, last sequence
-- Reply    {"ok", next cursor, "0" at the end; a number that the step counted}
--          queues: {"ok", number of queues done, last sequence, order to continue with in the next one}
--          begin: {"mine"}, {"locked"} or {"done"}; any other step: {"lost"} if another caller repairs now
--
-- repair   the caller that repairs; expires when it is silent for LOCK_MILLISECONDS
local LOCK_MILLISECONDS, PAGE, MAX_TASKS, FIRST_LANE = 10000, 100, 500, 6
local owner, step, argument = ARGV[3], ARGV[4], ARGV[5]

if step == 'begin' then
  local run_id = argument
  if crawl.run == run_id then return {'done'} end
  -- A caller that began in an earlier run of the server has lost its connection.
  local holder = call('GET', P .. 'repair')
  if holder and holder ~= owner and string.sub(holder, 1, #run_id) == run_id then
    -- After the server's clock was set back, the remaining seconds may become an hour.
    if call('PTTL', P .. 'repair') > LOCK_MILLISECONDS then call('PEXPIRE', P .. 'repair', LOCK_MILLISECONDS) end
    return {'locked'}
  end
  call('SET', P .. 'repair', owner, 'PX', LOCK_MILLISECONDS)
  return {'mine'}
end
if call('GET', P .. 'repair') ~= owner then return {'lost'} end
call('PEXPIRE', P .. 'repair', LOCK_MILLISECONDS)

local kept = ttl and kept_generations() or {}

-- The task exists, so it has not ended.
local function make_known(task)
  if bloom_error then
    if not bloom_knows(key_of(task)) then bloom_learn(key_of(task)) end
    return
  end
  local key, bucket = decimals_of(key_of(task)), bucket_at(low_of_task(task))
  if call('SISMEMBER', seen_prefix .. bucket, key) == 0 then call('SADD', seen_prefix .. bucket, key) end
  for _, number in ipairs(kept) do call('SREM', past_set(number, bucket), key) end
end

local function forget_letter(key, letter)
  call('HDEL', P .. 'dead', key)
  call('ZREM', P .. 'graves', grave_of(letter.order, key))
end

local function each_lane(change)
  for i = FIRST_LANE, #ARGV do change(need_lane(ARGV[i])) end
  save_lanes()
end

-- Whether a bucket was the source of one of the last splits.
local function was_split_lately(bucket)
  for new = math.max(1, buckets - MAX_SPLITS), buckets - 1 do
    local size = 1
    while size * 2 <= new do size = size * 2 end
    if bucket == new - size then return true end
  end
  return false
end

-- Count a request in flight through an exit; a quarantined exit is then on probation.
local function hold_exit(lane, held)
  local roster, pool, index = roster_of(lane), lane.pool, held.exit_index
  if index >= roster.size then return end
  roster.flights[index] = (roster.flights[index] or 0) + 1
  if mark_at(roster, index) == QUARANTINED then
    set_next_start(roster, index, tonumber(call('ZSCORE', P .. 'rests:' .. lane.name, member_of(index))) or now)
    set_mark(roster, index, ON_PROBATION)
    end_rest(lane, index)
  end
  if pool.exists and pool.exclusive ~= 0 then
    need_exit(name_at(pool, index)).holder = held.token
    other_lanes.hold(name_at(pool, index))
    save_exit(name_at(pool, index))
  end
end

local steps = {}

function steps.renew()
  return {'ok', '0', 0}
end

-- No request counts as in flight until `held` has it; an opening lease is unsure: its token is negative until it is found.
function steps.reset()
  each_lane(function(lane)
    lane.in_flight, lane.opener = 0, -math.abs(lane.opener)
    if has_begun(lane) then
      roster_of(lane).flights = {}
      review_roster(lane, true)
    end
  end)
  return {'ok', '0', 0}
end

-- No lease holds an exit until `held` has it.
function steps.exits()
  local cursor, page = unpack(call('HSCAN', P .. 'exits', argument, 'COUNT', PAGE))
  for i = 1, #page, 2 do
    need_exit(page[i]).holder = 0
    save_exit(page[i])
  end
  return {'ok', cursor, 0}
end

function steps.held()
  local cursor, page = unpack(call('HSCAN', P .. 'held', argument, 'COUNT', PAGE))
  for i = 1, #page, 2 do
    local key, held = page[i], read_held(page[i + 1])
    local lane = need_lane(held.lane)
    if not held.has_landed then lane.in_flight = lane.in_flight + 1 end
    if lane.via then hold_exit(lane, held) end
    if lane.opener == -held.token then lane.opener = held.token end
    local kind = kind_names and kind_of(held.task)
    local queue, removed = queue_of(lane, kind), call('ZREM', queue_key(held.lane, kind or HTTP), held.task)
    lane.waiting = lane.waiting - removed
    if queue ~= lane then queue.waiting = queue.waiting - removed end
    call('ZREM', P .. 'later', later_entry(held.order, held.lane, held.task))
    call('HDEL', P .. 'tries', key)
    local letter = call('HGET', P .. 'dead', key)
    if letter then forget_letter(key, read_dead(letter)) end
    -- The renewal of a lease may be lost, and its worker could not renew it during the repair.
    call('ZADD', P .. 'leases', 'GT', now + tonumber(ARGV[6]), key)
    make_known(held.task)
  end
  save_lanes()
  return {'ok', cursor, 0}
end

function steps.leases()
  local cursor, page = unpack(call('ZSCAN', P .. 'leases', argument, 'COUNT', PAGE))
  for i = 1, #page, 2 do
    if call('HEXISTS', P .. 'held', page[i]) == 0 then call('ZREM', P .. 'leases', page[i]) end
  end
  return {'ok', cursor, 0}
end

function steps.later()
  local cursor, page = unpack(call('ZSCAN', P .. 'later', argument, 'COUNT', PAGE))
  local last = 0
  for i = 1, #page, 2 do
    local order, name, task = read_later(page[i])
    last = math.max(last, order % SEQUENCES)
    if call('ZSCORE', queue_key(name, kind_of(task) or HTTP), task) then call('ZREM', P .. 'later', page[i]) end
    need_lane(name)
    make_known(task)
  end
  save_lanes()
  return {'ok', cursor, last}
end

function steps.dead()
  local cursor, page = unpack(call('HSCAN', P .. 'dead', argument, 'COUNT', PAGE))
  for i = 1, #page, 2 do
    local key, letter = page[i], read_dead(page[i + 1])
    if call('ZSCORE', queue_key(letter.lane, kind_of(letter.task) or HTTP), letter.task) then
      forget_letter(key, letter)
    else
      call('ZADD', P .. 'graves', letter.at, grave_of(letter.order, key))
      need_lane(letter.lane)
      make_known(letter.task)
    end
  end
  save_lanes()
  return {'ok', cursor, 0}
end

function steps.graves()
  local cursor, page = unpack(call('ZSCAN', P .. 'graves', argument, 'COUNT', PAGE))
  for i = 1, #page, 2 do
    if call('HEXISTS', P .. 'dead', string.sub(page[i], 5)) == 0 then call('ZREM', P .. 'graves', page[i]) end
  end
  return {'ok', cursor, 0}
end

-- Every waiting task is known, and waits once.
function steps.queues()
  local order, room, last = argument, MAX_TASKS, 0
  for i = FIRST_LANE, #ARGV do
    local from = order == '-inf' and order or '(' .. order
    local entries = call('ZRANGEBYSCORE', P .. ARGV[i], from, '+inf', 'WITHSCORES', 'LIMIT', 0, room)
    for j = 1, #entries, 2 do
      make_known(entries[j])
      last = math.max(last, tonumber(entries[j + 1]) % SEQUENCES)
    end
    room = room - #entries / 2
    if room <= 0 then return {'ok', i - FIRST_LANE, last, entries[#entries]} end
    order = '-inf'
  end
  return {'ok', #ARGV - FIRST_LANE + 1, last, '-inf'}
end

-- The number of keys in a set. A bucket that was split lately may still have keys that were moved to another one.
local function keys_in(set, bucket)
  if was_split_lately(bucket) then
    for _, key in ipairs(call('SMEMBERS', set)) do
      if bucket_at(low_of_decimals(key, half * 2)) ~= bucket then call('SREM', set, key) end
    end
  end
  return call('SCARD', set)
end

-- The number of keys. A Bloom filter cannot count its keys: the counter is used.
function steps.seen()
  if bloom_error then return {'ok', '0', tonumber(call('HGET', P .. 'count', 'seen') or 0)} end
  local first, total = tonumber(argument), 0
  local last = math.min(first + 10 * PAGE, buckets)
  if ttl and first == 0 then call('HSET', P .. 'turns', 'ended0', 0, 'ended1', 0, 'ended2', 0) end
  for bucket = first, last - 1 do
    total = total + keys_in(seen_prefix .. bucket, bucket)
    for _, number in ipairs(kept) do
      local ended = keys_in(past_set(number, bucket), bucket)
      if ended > 0 then count_ended(number, ended) end
      total = total + ended
    end
  end
  return {'ok', last < buckets and format('%.0f', last) or '0', total}
end

-- Recount the delayed tasks of every kind; queued ones are added with their lanes.
function steps.kinds()
  if not kind_names then return {'ok', '0', 0} end
  local first = tonumber(argument)
  if first == 0 then
    for _, kind in ipairs(kind_names) do call('HSET', P .. 'count', 'kind:' .. kind, 0) end
  end
  local page = call('ZRANGE', P .. 'later', first, first + PAGE - 1)
  for i = 1, #page do
    local _, _, task = read_later(page[i])
    if kind_of(task) then count_kind(kind_of(task), 1) end
  end
  save_counts()
  return {'ok', #page == PAGE and format('%.0f', first + PAGE) or '0', 0}
end

function steps.clear()
  call('UNLINK', P .. 'ready', P .. 'busy')
  for _, kind in ipairs(kind_names or {}) do call('UNLINK', P .. ready_key(kind)) end
  return {'ok', '0', 0}
end

-- Add every lane to `ready` and `busy` again. It rests: starts of the lost second may be missing.
function steps.lanes()
  local waiting, rest_seconds = 0, tonumber(argument)
  each_lane(function(lane)
    lane.opener = math.max(0, lane.opener)
    -- The names of the slot may lack this crawl, and another lane may still be marked ALONE.
    lane.sharing = host_rules.first_sharing(lane.name, not crawl.share)
    if lane.sharing == ALONE and host_names.join(lane.name) then lane.sharing = SHARED end
    if not lane.via then lane_rules.bring_back(lane) end
    lane.next_start = math.max(lane.next_start, now + rest_seconds)
    unindex(lane)
    for kind, queue in pairs(lane.queues or {}) do
      if kind ~= HTTP then count_kind(kind, queue.waiting) end
    end
    lane.exits_changed = has_begun(lane)
    waiting = waiting + lane.waiting
  end)
  save_counts()
  return {'ok', '0', waiting}
end

function steps.finish()
  local run_id, waiting, keys, last = argument, tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
  local later, leased, dead = call('ZCARD', P .. 'later'), call('HLEN', P .. 'held'), call('HLEN', P .. 'dead')
  local stored, expired = read_fields('count', 'forgotten', 'sequence', 'aside', 'untasked'), tonumber(call('HGET', P .. 'turns', 'expired')) or 0
  local live = waiting + later + leased + dead
  -- Tasks set aside have ended but are not done; keys known without a task never were tasks.
  local others = (tonumber(stored.aside) or 0) + (tonumber(stored.untasked) or 0)
  local done = keys + (tonumber(stored.forgotten) or 0) + expired - live - others
  -- The keys of a finished crawl may have been dropped: its counter stands.
  if crawl.keys then done = tonumber(call('HGET', P .. 'count', 'done')) or 0 end
  call('HSET', P .. 'count', 'queued', is_cancelled and 0 or waiting, 'delayed', is_cancelled and 0 or later, 'cancelled',
    is_cancelled and waiting + later or 0, 'leased', leased, 'dead', dead, 'seen', ttl and live or keys, 'done', math.max(0, done),
    'sequence', format('%.0f', math.max(last, tonumber(stored.sequence) or 0)))
  if waiting + later + leased > 0 then revive() else note_move() end
  -- No feeder could renew its time while the server was away.
  if crawl.state ~= 'finished' then
    for _, feeder in ipairs(call('ZRANGE', P .. 'feeders', 0, -1)) do
      local ends = tonumber(call('ZSCORE', P .. 'feeders', feeder))
      call('ZADD', P .. 'feeders', exact(math.max(ends, now + FEEDER_SECONDS)), feeder)
    end
  end
  call('HINCRBY', P .. 'crawl', 'epoch', 1)
  call('HSET', P .. 'crawl', 'run', run_id)
  call('DEL', P .. 'repair')
  return {'ok', '0', 0}
end

return steps[step]()
