-- needs: crawl task_rules
-- gives: first_of_dead read_dead grave_of bury unbury drop
-- Dead letters: writing, requeueing, dropping.
--
-- dead    key → time, order, attempts, lane, reason, detail, task
-- graves  sequence (4 bytes) and key → time of death
local LETTER = '>ddI4I2I4I4'

local function pack_dead(letter)
  return pack(LETTER, letter.at, letter.order, letter.attempts, #letter.lane, #letter.reason, #letter.detail)
    .. letter.lane .. letter.reason .. letter.detail .. letter.task
end

-- Its time, the lengths of its lane and its reason, and where the lane begins; the reason follows it.
function first_of_dead(value)
  local died, _, _, lane, reason, _, at = unpack_struct(LETTER, value)
  return died, lane, reason, at
end

function read_dead(value)
  local died, order, attempts, lane, reason, detail, at = unpack_struct(LETTER, value)
  return {
    at = died, order = order, attempts = attempts,
    lane = string.sub(value, at, at + lane - 1),
    reason = string.sub(value, at + lane, at + lane + reason - 1),
    detail = string.sub(value, at + lane + reason, at + lane + reason + detail - 1),
    task = string.sub(value, at + lane + reason + detail),
  }
end

function grave_of(order, key)
  return pack('>I4', order % SEQUENCES) .. key
end

-- Store a leased or waiting task as a dead letter.
function bury(held, reason, detail)
  local key = string.sub(held.task, 1, 8)
  count('dead', 1)
  tally('outcomes', task_rules.outcome_of(reason), 1)
  call('HSET', P .. 'dead', key, pack_dead({
    at = wall, order = held.order, attempts = held.attempts, lane = held.lane, reason = reason, detail = detail,
    task = held.task,
  }))
  call('ZADD', P .. 'graves', wall, grave_of(held.order, key))
end

-- Remove the letter; its task waits again, or is dropped.
function unbury(key, letter)
  count('dead', -1)
  tally('outcomes', task_rules.outcome_of(letter.reason), -1)
  call('HDEL', P .. 'dead', key)
  call('ZREM', P .. 'graves', grave_of(letter.order, key))
end

-- Drop the letter: its task counts as done.
function drop(key, letter)
  unbury(key, letter)
  count('done', 1)
  tally('outcomes', DROPPED, 1)
end
