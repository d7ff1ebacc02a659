-- include: crawl turns exits rosters using judging lanes tasks bloom seen decimals
-- repair: after a restart of the server, make the crawl's data agree with itself again, a bounded part per call.
-- A crash may have kept the first half of a script's writes. Scripts write so that a task may then be in two places or
-- unknown to the dedup, never in none; here it gets back to one: leased before queued before delayed before dead.
-- Meanwhile every other verb that changes something is refused.
--
-- ARGV[3]  who repairs: the server's run_id and a name
-- ARGV[4]  step: begin, renew, reset, exits, held, leases, later, dead, graves, queues, seen, clear, lanes, finish
-- ARGV[5]  begin and finish: the server's run_id; lanes: seconds to rest; queues: the order of the last task looked at
--          in the first lane, or "-inf"; else where to go on, "0" to begin with
-- ARGV[6…] reset, queues, lanes: names of lanes; finish: number of waiting tasks, number of keys, last sequence
-- Reply    {"ok", where to go on, "0" at the end; a number: what the step counted}
--          queues: {"ok", number of lanes done, last sequence, order to go on with in the next one}
--          begin: {"mine"}, {"locked"} or {"done"}; any other: {"lost"} when somebody else repairs now
local LOCK_MILLISECONDS, PAGE, MAX_TASKS = 10000, 100, 500
local owner, step, place = ARGV[3], ARGV[4], ARGV[5]

if step == 'begin' then
  if record[10] == place then return {'done'} end
  -- Whoever began under an earlier run of the server lost the connection with it.
  local holder = call('GET', P .. 'repair')
  if holder and holder ~= owner and string.sub(holder, 1, #place) == place then return {'locked'} end
  call('SET', P .. 'repair', owner, 'PX', LOCK_MILLISECONDS)
  return {'mine'}
end
if call('GET', P .. 'repair') ~= owner then return {'lost'} end
call('PEXPIRE', P .. 'repair', LOCK_MILLISECONDS)

local kept = ttl and generations() or {}

-- The task is there, so it has not ended.
local function make_known(task)
  if asked then
    if not bloom_knows(key_of(task)) then bloom_learn(key_of(task)) end
    return
  end
  local key = decimals_of(key_of(task))
  local place = place_at(low_of_task(task))
  local bucket = seen_prefix .. place
  if call('SISMEMBER', bucket, key) == 0 then call('SADD', bucket, key) end
  for _, number in ipairs(kept) do call('SREM', past_set(number, place), key) end
end

local function later_entry(order, lane, task)
  return pack('>dI2', order, #lane) .. lane .. task
end

local function forget_letter(key, letter)
  call('HDEL', P .. 'dead', key)
  call('ZREM', P .. 'graves', grave_of(letter.order, key))
end

local function each_lane(change)
  for i = 6, #ARGV do change(need_lane(ARGV[i])) end
  save_lanes()
end

-- Whether a set was the source of one of the last splits; a script makes at most eight.
local function was_split_lately(bucket)
  for new = math.max(1, buckets - 8), buckets - 1 do
    local size = 1
    while size * 2 <= new do size = size * 2 end
    if bucket == new - size then return true end
  end
  return false
end

-- A request is in flight through an exit; one that is ill is tried with it.
local function hold_exit(lane, held)
  local roster, roll, place = roster_of(lane), lane.roll, held.place
  if place >= roster.size then return end
  roster.flights[place] = (roster.flights[place] or 0) + 1
  if mark_at(roster, place) == MARK.ILL then
    set_next(roster, place, tonumber(call('ZSCORE', P .. 'rests:' .. lane.name, member_of(place))) or now)
    set_mark(roster, place, MARK.TRIED)
    end_rest(lane, place)
  end
  if roll.exists and roll.exclusive ~= 0 then
    need_exit(name_at(roll, place)).holder = held.token
    save_exit(name_at(roll, place))
  end
end

local steps = {}

function steps.renew()
  return {'ok', '0', 0}
end

-- Nobody is in flight until `held` says so; an opening lease is in doubt: its token is negative until it is found.
function steps.reset()
  each_lane(function(lane)
    lane.flight, lane.opener = 0, -math.abs(lane.opener)
    if has_begun(lane) then
      roster_of(lane).flights = {}
      review_roster(lane, true)
    end
  end)
  return {'ok', '0', 0}
end

-- Nobody holds an exit until `held` says so.
function steps.exits()
  local page = call('HSCAN', P .. 'exits', place, 'COUNT', PAGE)
  for i = 1, #page[2], 2 do
    need_exit(page[2][i]).holder = 0
    save_exit(page[2][i])
  end
  return {'ok', page[1], 0}
end

function steps.held()
  local page = call('HSCAN', P .. 'held', place, 'COUNT', PAGE)
  for i = 1, #page[2], 2 do
    local key, held = page[2][i], read_held(page[2][i + 1])
    local lane = need_lane(held.lane)
    lane.flight = lane.flight + 1
    if lane.via then hold_exit(lane, held) end
    if lane.opener == -held.token then lane.opener = held.token end
    lane.waiting = lane.waiting - call('ZREM', P .. 'q:' .. held.lane, held.task)
    call('ZREM', P .. 'later', later_entry(held.order, held.lane, held.task))
    call('HDEL', P .. 'tries', key)
    local letter = call('HGET', P .. 'dead', key)
    if letter then forget_letter(key, read_dead(letter)) end
    call('ZADD', P .. 'leases', 'NX', now, key)
    make_known(held.task)
  end
  save_lanes()
  return {'ok', page[1], 0}
end

function steps.leases()
  local page = call('ZSCAN', P .. 'leases', place, 'COUNT', PAGE)
  for i = 1, #page[2], 2 do
    if call('HEXISTS', P .. 'held', page[2][i]) == 0 then call('ZREM', P .. 'leases', page[2][i]) end
  end
  return {'ok', page[1], 0}
end

function steps.later()
  local page = call('ZSCAN', P .. 'later', place, 'COUNT', PAGE)
  local last = 0
  for i = 1, #page[2], 2 do
    local order, name, task = read_later(page[2][i])
    last = math.max(last, order % SEQUENCES)
    if call('ZSCORE', P .. 'q:' .. name, task) then call('ZREM', P .. 'later', page[2][i]) end
    need_lane(name)
    make_known(task)
  end
  save_lanes()
  return {'ok', page[1], last}
end

function steps.dead()
  local page = call('HSCAN', P .. 'dead', place, 'COUNT', PAGE)
  for i = 1, #page[2], 2 do
    local key, letter = page[2][i], read_dead(page[2][i + 1])
    if call('ZSCORE', P .. 'q:' .. letter.lane, letter.task) then
      forget_letter(key, letter)
    else
      call('ZADD', P .. 'graves', letter.at, grave_of(letter.order, key))
      need_lane(letter.lane)
      make_known(letter.task)
    end
  end
  save_lanes()
  return {'ok', page[1], 0}
end

function steps.graves()
  local page = call('ZSCAN', P .. 'graves', place, 'COUNT', PAGE)
  for i = 1, #page[2], 2 do
    if call('HEXISTS', P .. 'dead', string.sub(page[2][i], 5)) == 0 then call('ZREM', P .. 'graves', page[2][i]) end
  end
  return {'ok', page[1], 0}
end

-- Every waiting task is known, and waits once.
function steps.queues()
  local order, room, last = place, MAX_TASKS, 0
  for i = 6, #ARGV do
    local from = order == '-inf' and order or '(' .. order
    local entries = call('ZRANGEBYSCORE', P .. 'q:' .. ARGV[i], from, '+inf', 'WITHSCORES', 'LIMIT', 0, room)
    for j = 1, #entries, 2 do
      make_known(entries[j])
      last = math.max(last, tonumber(entries[j + 1]) % SEQUENCES)
    end
    room = room - #entries / 2
    if room <= 0 then return {'ok', i - 6, last, entries[#entries]} end
    order = '-inf'
  end
  return {'ok', #ARGV - 5, last, '-inf'}
end

-- The number of keys in a set. One that was split last may still hold keys that were moved out of it.
local function keys_in(set, bucket)
  if was_split_lately(bucket) then
    for _, key in ipairs(call('SMEMBERS', set)) do
      if place_at(low_of_decimals(key, half * 2)) ~= bucket then call('SREM', set, key) end
    end
  end
  return call('SCARD', set)
end

-- The number of keys. Filters have none: there the counter must do.
function steps.seen()
  if asked then return {'ok', '0', tonumber(call('HGET', P .. 'count', 'seen') or 0)} end
  local first, total = tonumber(place), 0
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

function steps.clear()
  call('UNLINK', P .. 'ready', P .. 'busy')
  return {'ok', '0', 0}
end

-- Re-arm every lane. It rests: the lost second may have lent start slots.
function steps.lanes()
  local waiting, rest = 0, tonumber(place)
  each_lane(function(lane)
    lane.opener = math.max(0, lane.opener)
    lane.next = math.max(lane.next, now + rest)
    lane.was_ready, lane.was_waiting = false, -1
    lane.looks = has_begun(lane)
    waiting = waiting + lane.waiting
  end)
  return {'ok', '0', waiting}
end

function steps.finish()
  local waiting, keys, last = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
  local later, leased, dead = call('ZCARD', P .. 'later'), call('HLEN', P .. 'held'), call('HLEN', P .. 'dead')
  local stored, expired = call('HMGET', P .. 'count', 'forgotten', 'sequence'), call('HGET', P .. 'turns', 'expired')
  local live = waiting + later + leased + dead
  local done = keys + (tonumber(stored[1]) or 0) + (tonumber(expired) or 0) - live
  call('HSET', P .. 'count', 'queued', is_cancelled and 0 or waiting, 'delayed', is_cancelled and 0 or later, 'cancelled',
    is_cancelled and waiting + later or 0, 'leased', leased, 'dead', dead, 'seen', ttl and live or keys, 'done', math.max(0, done),
    'sequence', format('%.0f', math.max(last, tonumber(stored[2]) or 0)))
  if waiting + later + leased > 0 then revive() else stir() end
  call('HINCRBY', P .. 'crawl', 'epoch', 1)
  call('HSET', P .. 'crawl', 'run', place)
  call('DEL', P .. 'repair')
  return {'ok', '0', 0}
end

return steps[step]()
