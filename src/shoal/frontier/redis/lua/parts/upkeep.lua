-- needs: tasks
-- gives: reclaim_expired wake_due pause_if_spent stop_if_reached limits_so_far
-- The work of a lease call before it leases: reclaim expired leases, queue delayed tasks that are due, pause a crawl that has spent its
-- budget of cost, stop a crawl that has reached a limit.

-- Gives how many leases it has reclaimed. `seconds`: only those that expired at least that long ago.
function reclaim_expired(seconds)
  local keys = call('ZRANGEBYSCORE', P .. 'leases', '-inf', now - (seconds or 0), 'LIMIT', 0, MAX_RECLAIMED)
  if #keys == 0 then return 0 end
  local values = call('HMGET', P .. 'held', unpack(keys))
  for i = 1, #keys do
    if values[i] then lose(read_held(values[i])) else ended[#ended + 1] = keys[i] end
  end
  save_queues()
  save_ended()
  return #keys
end

function wake_due()
  if is_cancelled then return end
  local due = call('ZRANGEBYSCORE', P .. 'later', '-inf', now, 'LIMIT', 0, MAX_WOKEN)
  if #due == 0 then return end
  local keys = {}
  for i = 1, #due do
    local order, name, task = read_later(due[i])
    keys[i] = key_of(task)
    count('delayed', -1)
    local kind = kind_names and kind_of(task)
    if kind then count_kind(kind, -1) end
    wait(need_lane(name), order, task, 0, kind)
  end
  save_queues()
  call('ZREM', P .. 'later', unpack(due))
  call('HDEL', P .. 'visits', unpack(keys))
end

-- How many tasks are left, with counters that are not saved yet.
local function left_now()
  local left = sum_of_counts('queued', 'delayed', 'leased')
  for _, name in ipairs({'queued', 'delayed', 'leased'}) do left = left + (counted[name] or 0) end
  return left
end

-- Whether a STAYER keeps the crawl open for tasks from outside.
local function is_kept_open()
  if not crawl.feeding then return false end
  for _, feeder in ipairs(call('ZRANGEBYSCORE', P .. 'feeders', '(' .. exact(now), '+inf')) do
    if string.sub(feeder, 1, #STAYER) == STAYER then return true end
  end
  return false
end

local function has_limits()
  return crawl.state == 'running' and crawl.limits and crawl.limits ~= ''
end

-- The value that a limit {of, most, why, note} compares (see rules/tasks.py).
local function come_to(limit)
  if limit[1] == 'note' then return tonumber(call('HGET', P .. 'notes', limit[4])) or 0 end
  return limit[1] == 'ran' and crawl.ran or wall
end

-- Stop a crawl that has reached one of its limits and has work left or is kept open, for the limit's reason (see rules/tasks.py).
function stop_if_reached()
  if not has_limits() then return end
  for _, limit in ipairs(cjson.decode(crawl.limits)) do
    if come_to(limit) >= limit[2] then
      if left_now() > 0 or is_kept_open() then
        crawl.state = 'stopped'
        call('HSET', P .. 'crawl', 'state', 'stopped', 'reason', limit[3], 'finished', wall)
      end
      return
    end
  end
end

-- In a shard: the tasks left (plus one if the crawl is kept open) and the value of each limit there; then the limits; "": no limits.
-- The caller sums them up over the shards.
function limits_so_far()
  if not has_limits() then return '' end
  local numbers = {format('%.0f', left_now() + (is_kept_open() and 1 or 0))}
  for i, limit in ipairs(cjson.decode(crawl.limits)) do numbers[i + 1] = format('%.17g', come_to(limit)) end
  return table.concat(numbers, ' ') .. '\n' .. crawl.limits
end

-- Pause a crawl that has spent its budget, until the budget is raised; a crawl without work left finishes instead.
function pause_if_spent()
  if crawl.state ~= 'running' or not task_rules.has_spent(crawl.cost, crawl.max_cost) then return end
  if left_now() > 0 then
    crawl.state = 'paused'
    call('HSET', P .. 'crawl', 'state', 'paused')
  end
end
