-- needs: tasks
-- gives: visits
-- Tasks that wait for their next visit, and hastened visits. One table, because a script has room for few names.
--
-- visits  key → due time of its entry in `later`; of tasks that wait for their next visit
local LEAST_ENTRY = 18
visits = {}
local due_times, hastened = {}, {}

-- The task of this lease waits for its next visit, due after the delay.
function visits.await(lane, held, delay)
  put_back(lane, held, delay)
  if delay > 0 then
    due_times[#due_times + 1] = key_of(held.task)
    due_times[#due_times + 1] = format('%.17g', now + delay)
  end
end

-- Make the next visit of the task with this key due now, if it waits for one.
function visits.hasten(key)
  hastened[#hastened + 1] = key
end

local function bring_forward(due, keys)
  -- Only visits settled by one call share a due time: few entries are read in vain.
  for _, entry in ipairs(call('ZRANGEBYSCORE', P .. 'later', due, due)) do
    -- A damaged entry is skipped: this call has begun to write. The call that wakes it reports it.
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
