-- Tasks: a task is a string that is never decoded here. Its first bytes: key (8), most attempts (2), path shape (8).
--
-- q:LANE  task → order: −priority · 2^31 + sequence
-- later   order, lane and task → due time
-- held    key → token, order, attempts, free retries, the place of its exit, lane, worker, reason, task
-- leases  key → end of the lease
-- tries   key → attempts, free retries, reason; only of tasks that wait and were lent before
-- dead    key → time, order, attempts, lane, reason, detail, task
-- graves  sequence and key → time of death
local SEQUENCES = 2147483648

local function key_of(task)
  return string.sub(task, 1, 8)
end

local function max_attempts_of(task)
  return (unpack_struct('>I2', task, 9))
end

-- A task of this lane begins to wait for its turn. One that was empty queues up behind those that waited longer.
local function wait(lane, order, task, delay)
  if delay > 0 then
    count(is_cancelled and 'cancelled' or 'delayed', 1)
    call('ZADD', P .. 'later', now + delay, pack('>dI2', order, #lane.name) .. lane.name .. task)
    return
  end
  count(is_cancelled and 'cancelled' or 'queued', 1)
  if lane.waiting == 0 then lane.next = math.max(lane.next, now) end
  lane.waiting = lane.waiting + 1
  local adds = lane.adds
  adds[#adds + 1] = order
  adds[#adds + 1] = task
end

-- What `later` says of a task: order, lane, task.
local function read_later(entry)
  local order, length = unpack_struct('>dI2', entry)
  return order, string.sub(entry, 11, 10 + length), string.sub(entry, 11 + length)
end

local function pack_held(held)
  return pack('>ddI4I4I4I2I2I4', held.token, held.order, held.attempts, held.free, held.place, #held.lane, #held.worker,
    #held.reason) .. held.lane .. held.worker .. held.reason .. held.task
end

local function read_held(value)
  local token, order, attempts, free, place, lane, worker, reason, at = unpack_struct('>ddI4I4I4I2I2I4', value)
  return {
    token = token, order = order, attempts = attempts, free = free, place = place,
    lane = string.sub(value, at, at + lane - 1),
    worker = string.sub(value, at + lane, at + lane + worker - 1),
    reason = string.sub(value, at + lane + worker, at + lane + worker + reason - 1),
    task = string.sub(value, at + lane + worker + reason),
  }
end

local function pack_dead(letter)
  return pack('>ddI4I2I4I4', letter.at, letter.order, letter.attempts, #letter.lane, #letter.reason, #letter.detail)
    .. letter.lane .. letter.reason .. letter.detail .. letter.task
end

local function read_dead(value)
  local died, order, attempts, lane, reason, detail, at = unpack_struct('>ddI4I2I4I4', value)
  return {
    at = died, order = order, attempts = attempts,
    lane = string.sub(value, at, at + lane - 1),
    reason = string.sub(value, at + lane, at + lane + reason - 1),
    detail = string.sub(value, at + lane + reason, at + lane + reason + detail - 1),
    task = string.sub(value, at + lane + reason + detail),
  }
end

local function grave_of(order, key)
  return pack('>I4', order % SEQUENCES) .. key
end

-- The keys whose leases ended in this call; they leave `held` when everything else is written.
local ended = {}

-- The report says how the exit did, if anybody knows.
local function end_lease(lane, held, report)
  count('leased', -1)
  if lane.via then end_exit(lane, held.place, held.token, report) end
  leave_lane(lane, held.token)
  ended[#ended + 1] = key_of(held.task)
end

local function save_ended()
  if #ended > 0 then
    call('HDEL', P .. 'held', unpack(ended))
    call('ZREM', P .. 'leases', unpack(ended))
  end
end

-- The lease is over and the task waits again.
local function put_back(lane, held, delay)
  if held.attempts > 0 or held.free > 0 or held.reason ~= '' then
    call('HSET', P .. 'tries', key_of(held.task), pack('>I4I4', held.attempts, held.free) .. held.reason)
  end
  wait(lane, held.order, held.task, delay)
end

local function bury(held, reason, detail)
  local key = key_of(held.task)
  count('dead', 1)
  tally('outcomes', outcome_of(reason), 1)
  call('HSET', P .. 'dead', key, pack_dead({
    at = now, order = held.order, attempts = held.attempts, lane = held.lane, reason = reason, detail = detail,
    task = held.task,
  }))
  call('ZADD', P .. 'graves', now, grave_of(held.order, key))
end

-- The lease ran out or its worker is gone.
local function lose(held)
  local lane = need_lane(held.lane)
  end_lease(lane, held)
  count('lost', 1)
  if held.attempts >= max_attempts_of(held.task) then
    bury(held, 'worker lost', '')
  else
    held.reason = ''
    put_back(lane, held, 0)
  end
end
