-- needs: server
-- gives: TRIES key_of max_attempts_of kind_of losses_of later_entry read_later pack_held read_held
-- The encoding of tasks. Scripts read only the first bytes of a task: key (8), max_attempts (2), path shape (8), flags (1). With the
-- flag HAS_KIND, the length (1) of the kind and the kind follow the header of HEADER bytes.
--
-- later  order, length of the lane (2 bytes), lane and task → due time
-- held   key → token, order, attempts, losses, free retries, the index of its exit, lane, worker, reason, task
-- The token is negative when the request has landed and no longer counts as in flight in its lane's record.
local LATER, HELD_TASK = '>dI2', '>ddI4I2I2I4I2I2I4'
TRIES = '>I4I2I2'
local LEAST_TASK, FLAGS_AT, HAS_KIND, HEADER = 18, 19, 4, 37

function key_of(task)
  return string.sub(task, 1, 8)
end

function max_attempts_of(task)
  return (unpack_struct('>I2', task, 9))
end

-- The kind of a task; nil: http.
function kind_of(task)
  if (string.byte(task, FLAGS_AT) or 0) < HAS_KIND then return nil end
  local length = string.byte(task, HEADER + 1)
  assert(length and #task > HEADER + 1 + length, 'a task that cannot be read')
  return string.sub(task, HEADER + 2, HEADER + 1 + length)
end

-- The losses in an entry of `tries`.
function losses_of(tries)
  return (unpack_struct('>I2', tries, 5))
end

function later_entry(order, lane_name, task)
  return pack(LATER, order, #lane_name) .. lane_name .. task
end

-- Gives order, lane and task.
function read_later(entry)
  local order, length, at = unpack_struct(LATER, entry)
  return order, string.sub(entry, at, at + length - 1), string.sub(entry, at + length)
end

function pack_held(held)
  return pack(HELD_TASK, held.token, held.order, held.attempts, held.losses, held.free_retries, held.exit_index, #held.lane,
    #held.worker, #held.reason) .. held.lane .. held.worker .. held.reason .. held.task
end

function read_held(value)
  local token, order, attempts, losses, free_retries, exit_index, lane, worker, reason, at = unpack_struct(HELD_TASK, value)
  assert(at + lane + worker + reason + LEAST_TASK <= #value, 'a held record that cannot be read')
  return {
    token = math.abs(token), has_landed = token < 0, order = order, attempts = attempts, losses = losses, free_retries = free_retries, exit_index = exit_index,
    lane = string.sub(value, at, at + lane - 1),
    worker = string.sub(value, at + lane, at + lane + worker - 1),
    reason = string.sub(value, at + lane + worker, at + lane + worker + reason - 1),
    task = string.sub(value, at + lane + worker + reason),
  }
end
