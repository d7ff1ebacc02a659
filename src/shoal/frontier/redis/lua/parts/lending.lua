-- needs: lanes picking task_records task_rules letters
-- gives: lend save_lent
-- Leasing the tasks of a lane: each lease gets a token and, in a lane with a pool, an exit.
local held_fields, lease_fields, used_tries = {}, {}, {}
local token

-- No two shards give the same token.
local function next_token()
  local least = task_rules.next_token(token)
  return is_sharded and least + (crawl.shard - least) % crawl.shards or least
end

local function hold(lane, task, order, terms, tries, exit_index)
  local key = key_of(task)
  local held = {
    token = token, order = order, attempts = 1, losses = 0, free_retries = 0, exit_index = exit_index, lane = lane.name,
    worker = terms.worker, reason = '', task = task,
  }
  if tries then
    local attempts, losses, free_retries, at = unpack_struct(TRIES, tries)
    held.attempts, held.losses, held.free_retries, held.reason = attempts + 1, losses, free_retries, string.sub(tries, at)
    used_tries[#used_tries + 1] = key
  end
  held_fields[#held_fields + 1] = key
  held_fields[#held_fields + 1] = pack_held(held)
  lease_fields[#lease_fields + 1] = now + terms.seconds
  lease_fields[#lease_fields + 1] = key
  return held
end

local has_tries

local function tries_of(entries)
  if has_tries == nil then has_tries = call('EXISTS', P .. 'tries') == 1 end
  if not has_tries then return {} end
  local keys = {}
  for i = 1, #entries, 2 do keys[#keys + 1] = key_of(entries[i]) end
  return call('HMGET', P .. 'tries', unpack(keys))
end

-- Uncount a waiting task of the lane; drop_entries removes it from its queue.
local function leave_queue(lane, queue)
  lane.waiting = lane.waiting - 1
  if not queue then
    lane.lent = (lane.lent or 0) + 1
    return
  end
  if queue.kind ~= HTTP then count_kind(queue.kind, -1) end
  queue.waiting, queue.lent = queue.waiting - 1, (queue.lent or 0) + 1
end

-- Give up tasks of a lane whose exits rested for too long, a bounded number per call. After the last one, the lane's patience begins
-- again.
local function give_up(lane, kinds)
  local reason = exit_rules.no_exit_reason(lane.via, lane.pool.exists)
  local entries, queues = next_entries(lane, kinds, MAX_GIVEN_UP)
  local tries, used_up = tries_of(entries), {}
  for i = 1, #entries, 2 do
    local used = tries[(i + 1) / 2]
    bury({
      task = entries[i], order = tonumber(entries[i + 1]), attempts = used and unpack_struct(TRIES, used) or 0,
      lane = lane.name,
    }, reason, '')
    if used then used_up[#used_up + 1] = key_of(entries[i]) end
    leave_queue(lane, queues and queues[i])
  end
  drop_entries(lane)
  if #used_up > 0 then call('HDEL', P .. 'tries', unpack(used_up)) end
  count('queued', -#entries / 2)
  if lane.pool.exists and lane.waiting == 0 then lane.roster.starved_since = now end
  lane.exits_changed = true
end

-- Lease the lane's next tasks up to the first suspect, or, if allowed, a suspect alone: then gives true, and nothing more may be
-- leased in this call. Adds to the reply: lane, interval, base interval, letters ("o": opens the lane, "s": stopped at a suspect),
-- rules' version, first token (the next ones differ by the number of shards), a list with wait, attempt, losses and free retries
-- (8, 4, 2 and 2 bytes) before each task, and ""; for a lane with a pool, lines instead: the interval of an exit and, if any, the
-- versions of the tasks' sessions, separated by spaces; then the exit of each task.
function lend(lane, total, terms, reply)
  local limits = lane.limits
  if limits then lane.next_start = math.max(lane.next_start, limits.not_before) end
  if lane.via and gives_up(lane) then
    give_up(lane, terms.kinds)
    return false
  end
  local pool = lane.via and lane.pool
  local entries, queues = next_entries(lane, terms.kinds, total)
  local tries = tries_of(entries)
  local opens, version = lane_rules.needs_opening(lane), lane.rules_until > now and lane.version or 0
  local interval, base = lane.interval, lane.base_interval
  if limits and not opens then interval, base = limits.interval, limits.base_interval end
  local head, exits = pool and pool.interval_text, {}
  token = token or tonumber(call('HGET', P .. 'count', 'token') or 0)
  local first, lent, is_alone, letters = next_token(), {}, false, opens and 'o' or ''
  for i = 1, #entries, 2 do
    local used = tries[(i + 1) / 2]
    is_alone = used and task_rules.is_suspect(losses_of(used))
    if is_alone and (i > 1 or not terms.may_be_alone) then
      is_alone, letters = false, letters .. 's'
      break
    end
    local start, index = math.max(now, lane.next_start), NO_INDEX
    terms.token = next_token()
    if pool then
      index = lane.next_start <= terms.latest and pick_exit(lane, terms.latest, total)
      if not index then
        is_alone = false
        break
      end
      local next_start, exit = lane.roster.next_starts[index], pool.names[index] or name_at(pool, index)
      if next_start and next_start > start then start = next_start end
      start_exit(lane, index, start, terms)
      exits[#exits + 1] = exit
      if has_exit_rows then head = head .. format(' %.0f', session_version(exit)) end
    end
    token = terms.token
    local held = hold(lane, entries[i], tonumber(entries[i + 1]), terms, used, index)
    lent[#lent + 1] = pack('>dI4I2I2', start - now, held.attempts, held.losses, held.free_retries) .. held.task
    lane_rules.take_slot(lane, start, limits and limits.interval)
    leave_queue(lane, queues and queues[i])
    if is_alone then break end
  end
  count('queued', -#lent)
  count('leased', #lent)
  lane.in_flight = lane.in_flight + #lent
  if crawl.share then lane.turn = lane.turn + #lent / crawl.share end
  if pool then lane.exits_changed = true end
  if pool and #lent == 0 and #entries > 0 and lane.roster.elsewhere then
    lane.next_start = math.max(lane.next_start, now + LOOK_AGAIN_SECONDS)
  end
  if opens and #lent > 0 then lane.opener = token end
  for _, value in ipairs({
    lane.name, format('%.17g', interval), format('%.17g', base), letters, format('%.0f', version),
    format('%.0f', first), lent, pool and table.concat({head, unpack(exits)}, '\n') or '',
  }) do
    reply[#reply + 1] = value
  end
  return is_alone
end

-- Write the leases that lend has collected; gives how many. Tasks are in `held` before they leave the queue.
function save_lent()
  if #held_fields == 0 then return 0 end
  call('HSET', P .. 'count', 'token', format('%.0f', token))
  call('HSET', P .. 'held', unpack(held_fields))
  call('ZADD', P .. 'leases', unpack(lease_fields))
  for i = 1, #lane_list do
    drop_entries(lane_list[i])
  end
  if #used_tries > 0 then call('HDEL', P .. 'tries', unpack(used_tries)) end
  return #held_fields / 2
end
