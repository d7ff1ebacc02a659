-- needs: lanes task_records task_rules letters
-- gives: wait ended end_lease save_ended save_tries put_back lose release
-- Tasks that begin to wait, and leases that end.
--
-- q:LANE, kq:KIND:LANE  task → order: −priority · 2^31 + sequence
-- later   (see task_records)
-- leases  key → end of the lease
-- tries   key → attempts, losses, free retries, reason; only of tasks that wait and were leased before

-- A task of this lane and kind (nil: http) begins to wait. A lane that was empty queues up behind the waiting lanes.
function wait(lane, order, task, delay, kind)
  local queue = lane
  if kind or lane.queues then
    queue = queue_of(lane, kind)
    if kind then count_kind(kind, 1) end
  end
  if delay > 0 then
    count(is_cancelled and 'cancelled' or 'delayed', 1)
    call('ZADD', P .. 'later', now + delay, later_entry(order, lane.name, task))
    return
  end
  count(is_cancelled and 'cancelled' or 'queued', 1)
  if lane.waiting == 0 then lane.next_start = math.max(lane.next_start, now) end
  lane.waiting = lane.waiting + 1
  if queue ~= lane then queue.waiting = queue.waiting + 1 end
  local adds = queue.adds
  adds[#adds + 1] = order
  adds[#adds + 1] = task
end

-- The keys whose leases ended in this call; they are removed from `held` after everything else is written.
ended = {}

-- End a lease. `report`: on its exit; nil: not known.
function end_lease(lane, held, report)
  count('leased', -1)
  if lane.via then end_exit(lane, held.exit_index, held.token, report) end
  leave_lane(lane, held)
  ended[#ended + 1] = key_of(held.task)
end

function save_ended()
  if #ended > 0 then
    call('HDEL', P .. 'held', unpack(ended))
    call('ZREM', P .. 'leases', unpack(ended))
  end
end

function save_tries(key, attempts, losses, free_retries, reason)
  call('HSET', P .. 'tries', key, pack(TRIES, attempts, losses, free_retries) .. reason)
end

-- End the lease; the task waits again.
function put_back(lane, held, delay)
  if held.attempts > 0 or held.losses > 0 or held.free_retries > 0 or held.reason ~= '' then
    save_tries(key_of(held.task), held.attempts, held.losses, held.free_retries, held.reason)
  end
  wait(lane, held.order, held.task, delay, kind_names and kind_of(held.task))
end

-- End the lease as released: it uses up no attempt.
function release(lane, held)
  held.attempts, held.reason = held.attempts - 1, ''
  put_back(lane, held, 0)
end

-- End the lease as lost: it expired (no cause), or its worker exited with a cause, "" if unknown. is_blamed: nil if it is not known
-- whose handlers ran.
function lose(held, cause, is_blamed)
  local lane = need_lane(held.lane)
  end_lease(lane, held)
  count('lost', 1)
  local reason = task_rules.lost_reason(cause or '')
  local attempts, losses = task_rules.tries_after_loss(held.attempts, held.losses, max_attempts_of(held.task), is_blamed)
  if attempts then
    held.attempts, held.losses, held.reason = attempts, losses, reason
    put_back(lane, held, 0)
  else
    bury(held, reason, task_rules.lost_detail(held.worker, cause))
  end
end
