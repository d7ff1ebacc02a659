-- Lending: take back what expired, wake what is due, see which lanes may start and how much each one lends.
local MAX_TAKEN_BACK, MAX_WOKEN, MAX_GIVEN_UP, MIN_ASK_AGAIN, MAX_ASK_AGAIN = 200, 500, 100, 0.01, 1

local function take_back()
  local keys = call('ZRANGEBYSCORE', P .. 'leases', '-inf', now, 'LIMIT', 0, MAX_TAKEN_BACK)
  if #keys == 0 then return end
  local values = call('HMGET', P .. 'held', unpack(keys))
  for i = 1, #keys do
    if values[i] then lose(read_held(values[i])) else ended[#ended + 1] = keys[i] end
  end
  save_queues()
  save_ended()
end

local function wake_due()
  if is_cancelled then return end
  local due = call('ZRANGEBYSCORE', P .. 'later', '-inf', now, 'LIMIT', 0, MAX_WOKEN)
  if #due == 0 then return end
  for i = 1, #due do
    local order, name, task = read_later(due[i])
    count('delayed', -1)
    wait(need_lane(name), order, task, 0)
  end
  save_queues()
  call('ZREM', P .. 'later', unpack(due))
end

local function needs_opening(lane)
  return crawl.needs_rules and lane.rules_until <= now
end

-- How many tasks the lane may start within the horizon.
local function room_of(lane, limit, horizon)
  if not is_ready(lane) then return 0 end
  if needs_opening(lane) then return 1 end
  local room = math.min(lane.waiting, lane.cap - lane.flight, limit)
  if lane.interval == 0 then return room end
  local start = math.max(now, lane.next)
  for lent = 1, room - 1 do
    start = start + lane.interval
    if start > now + horizon then return lent end
  end
  return room
end

-- The lanes that may start, longest-waiting first. Call it when everything changed so far is saved.
local function ready_lanes(limit, horizon)
  if crawl.state ~= 'running' or limit == 0 then return {} end
  local found = {}
  for _, member in ipairs(call('ZRANGEBYSCORE', P .. 'ready', '-inf', now + horizon, 'LIMIT', 0, limit)) do
    found[#found + 1] = need_lane(string.sub(member, 9))
  end
  return found
end

-- The same share for each lane, then what is left to those that can still take some.
local function share_out(rooms, limit)
  local given = {}
  for i = 1, #rooms do given[i] = 0 end
  while limit > 0 do
    local open = {}
    for i = 1, #rooms do
      if given[i] < rooms[i] then open[#open + 1] = i end
    end
    if #open == 0 then break end
    local share = math.max(1, math.floor(limit / #open))
    for _, i in ipairs(open) do
      local part = math.min(share, rooms[i] - given[i], limit)
      given[i] = given[i] + part
      limit = limit - part
    end
  end
  return given
end

local held_fields, lease_fields, used_tries = {}, {}, {}
local token

-- It grows even if the last second of this server was lost. No two shards give the same one.
local function next_token()
  local least = math.max(token + 1, math.floor(now * 1000) * 1024)
  return crawl.is_sharded and least + (record[14] - least) % record[12] or least
end

local function hold(lane, task, order, terms, tries, place)
  local key = key_of(task)
  local held = {
    token = token, order = order, attempts = 1, free = 0, place = place, lane = lane.name, worker = terms.worker, reason = '',
    task = task,
  }
  if tries then
    local attempts, free = unpack_struct('>I4I4', tries)
    held.attempts, held.free, held.reason = attempts + 1, free, string.sub(tries, 9)
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

-- The lane's exits rested too long: its tasks wait no more, a bounded number at a time. A new time of waiting begins with
-- the last one.
local function give_up(lane)
  local why = lane.roll.exists and 'no_exit: every exit of pool ' .. lane.via .. ' rests' or 'no_exit: there is no pool ' .. lane.via
  local entries = call('ZRANGE', P .. 'q:' .. lane.name, 0, MAX_GIVEN_UP - 1, 'WITHSCORES')
  local tries, used_up = tries_of(entries), {}
  for i = 1, #entries, 2 do
    local used = tries[(i + 1) / 2]
    bury({
      task = entries[i], order = tonumber(entries[i + 1]), attempts = used and unpack_struct('>I4', used) or 0,
      lane = lane.name,
    }, why, '')
    if used then used_up[#used_up + 1] = key_of(entries[i]) end
  end
  local total = #entries / 2
  if total > 0 then call('ZREMRANGEBYRANK', P .. 'q:' .. lane.name, 0, total - 1) end
  if #used_up > 0 then call('HDEL', P .. 'tries', unpack(used_up)) end
  count('queued', -total)
  lane.waiting = lane.waiting - total
  if lane.roll.exists and lane.waiting == 0 then lane.roster.starved = now end
  lane.looks = true
end

-- Lend the lane's next tasks. Adds to the reply: lane, interval, base interval, opens ("1"), rules' version, first
-- token (the others follow, as many apart as there are shards), a list with the wait, attempt and free retries (8, 4 and 4
-- bytes) before each task, and "", or of a lane that goes via a pool in lines: the interval of an exit and the versions of the
-- tasks' sessions, if there are any, with spaces between them; the exit of each task.
local function lend(lane, total, terms, reply)
  if lane.via and has_lost_patience(lane) then
    give_up(lane)
    return
  end
  local pool = lane.via and lane.roll
  local entries = call('ZRANGE', P .. 'q:' .. lane.name, 0, total - 1, 'WITHSCORES')
  local tries = tries_of(entries)
  local opens, version = needs_opening(lane), lane.rules_until > now and lane.version or 0
  local interval, base = lane.interval, lane.base
  local exits = pool and {pool.interval_text}
  token = token or tonumber(call('HGET', P .. 'count', 'token') or 0)
  local first, lent = next_token(), {}
  for i = 1, #entries, 2 do
    local start, place = math.max(now, lane.next), NOWHERE
    terms.token = next_token()
    if pool then
      place = lane.next <= terms.latest and pick_exit(lane, terms.latest, total)
      if not place then break end
      local next, exit = lane.roster.nexts[place], pool.names[place] or name_at(pool, place)
      if next and next > start then start = next end
      start_exit(lane, place, start, terms)
      exits[(i + 3) / 2] = exit
      if has_rows then exits[1] = exits[1] .. format(' %.0f', session_version(exit)) end
    end
    token = terms.token
    local held = hold(lane, entries[i], tonumber(entries[i + 1]), terms, tries[(i + 1) / 2], place)
    lent[#lent + 1] = pack('>dI4I4', start - now, held.attempts, held.free) .. held.task
    start_lane(lane, start)
  end
  count('queued', -#lent)
  count('leased', #lent)
  lane.waiting = lane.waiting - #lent
  lane.flight = lane.flight + #lent
  lane.lent = #lent
  if pool then lane.looks = true end
  if opens and #lent > 0 then lane.opener = token end
  for _, value in ipairs({
    lane.name, format('%.17g', interval), format('%.17g', base), opens and '1' or '0', format('%.0f', version),
    format('%.0f', first), lent, exits and table.concat(exits, '\n') or '',
  }) do
    reply[#reply + 1] = value
  end
end

-- Write what lend gave: into `held` before it leaves the queue.
local function save_lent()
  if #held_fields == 0 then return end
  call('HSET', P .. 'count', 'token', format('%.0f', token))
  call('HSET', P .. 'held', unpack(held_fields))
  call('ZADD', P .. 'leases', unpack(lease_fields))
  for i = 1, #lane_list do
    local lane = lane_list[i]
    if lane.lent and lane.lent > 0 then call('ZREMRANGEBYRANK', P .. 'q:' .. lane.name, 0, lane.lent - 1) end
  end
  if #used_tries > 0 then call('HDEL', P .. 'tries', unpack(used_tries)) end
end

-- "1" when the crawl has nothing left to do; a running one is then finished from here on. Counters are saved.
-- Of a crawl in several shards: "q" and its moves so far when this one is quiet, "o" when its outbox waits for a postman.
local function ending()
  local left = 0
  for _, number in ipairs(call('HMGET', P .. 'count', 'queued', 'delayed', 'leased')) do
    left = left + (tonumber(number) or 0)
  end
  if crawl.is_sharded then
    local oldest = call('ZRANGE', P .. 'outbox', 0, 0)[1]
    if oldest then return is_left_behind(oldest) and 'o' or '0' end
  end
  if left ~= 0 or crawl.feeding or crawl.state == 'paused' then return '0' end
  if crawl.is_sharded then return 'q' .. moves_so_far() end
  if crawl.state == 'running' then
    call('HSET', P .. 'crawl', 'state', 'finished', 'finished', now)
  end
  return '1'
end

-- Seconds until something can be lent that is there already.
local function ask_again()
  local soonest = now + MAX_ASK_AGAIN
  if crawl.state == 'running' then
    for _, name in ipairs({'ready', 'later', 'leases'}) do
      local first = call('ZRANGE', P .. name, 0, 0, 'WITHSCORES')
      if first[1] then soonest = math.min(soonest, tonumber(first[2])) end
    end
  end
  return format('%.17g', math.max(MIN_ASK_AGAIN, soonest - now))
end
