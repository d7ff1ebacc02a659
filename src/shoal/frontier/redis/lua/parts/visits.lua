-- needs: tasks
-- gives: visits
-- Tasks that wait for their next visit, and visits that are wanted earlier. One name for all: scripts have room for few.
--
-- visits  key → due time of its entry in `later`; of tasks that wait for their next visit
local LEAST_ENTRY = 18
visits = {}
local due_times, hastened = {}, {}

-- The page of this lease is visited again after the delay.
function visits.await(lane, held, delay)
  put_back(lane, held, delay)
  if delay > 0 then
    due_times[#due_times + 1] = key_of(held.task)
    due_times[#due_times + 1] = format('%.17g', now + delay)
  end
end

-- The next visit of the task with this key is to be due now, if it waits for one.
function visits.hasten(key)
  hastened[#hastened + 1] = key
end

local function bring_forward(due, keys)
  -- Visits that one call has settled are due at the same time, others are not: few entries are read in vain.
  for _, entry in ipairs(call('ZRANGEBYSCORE', P .. 'later', due, due)) do
    -- An entry that is cut short is left to those who wake it: this call has begun to write.
    local key = #entry > LEAST_ENTRY and key_of(select(3, read_later(entry)))
    if keys[key] then
      call('ZADD', P .. 'later', now, entry)
      call('HSET', P .. 'visits', key, format('%.17g', now))
    end
  end
end

function visits.save()
  if #due_times > 0 then call('HSET', P .. 'visits', unpack(due_times)) end
  if #hastened == 0 or is_cancelled then return end
  local dues, keys_due = call('HMGET', P .. 'visits', unpack(hastened)), {}
  for i = 1, #hastened do
    local due = dues[i]
    local at = due and tonumber(due)
    if at and at > now then
      keys_due[due] = keys_due[due] or {}
      keys_due[due][hastened[i]] = true
    end
  end
  for due, keys in pairs(keys_due) do bring_forward(due, keys) end
end
