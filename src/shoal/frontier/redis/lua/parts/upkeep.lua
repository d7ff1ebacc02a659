-- needs: tasks
-- gives: reclaim_expired wake_due pause_if_spent
-- What a lease call does before it lends: reclaims expired leases, wakes delayed tasks that are due, pauses a crawl that has spent
-- its budget of cost.

function reclaim_expired()
  local keys = call('ZRANGEBYSCORE', P .. 'leases', '-inf', now, 'LIMIT', 0, MAX_RECLAIMED)
  if #keys == 0 then return end
  local values = call('HMGET', P .. 'held', unpack(keys))
  for i = 1, #keys do
    if values[i] then lose(read_held(values[i])) else ended[#ended + 1] = keys[i] end
  end
  save_queues()
  save_ended()
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

-- A crawl that has spent its budget is paused until the budget is raised; a crawl without work left is finished instead.
function pause_if_spent()
  if crawl.state ~= 'running' or not task_rules.has_spent(crawl.cost, crawl.max_cost) then return end
  local left = sum_of_counts('queued', 'delayed', 'leased')
  for _, name in ipairs({'queued', 'delayed', 'leased'}) do left = left + (counted[name] or 0) end
  if left > 0 then
    crawl.state = 'paused'
    call('HSET', P .. 'crawl', 'state', 'paused')
  end
end
