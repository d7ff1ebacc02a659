-- needs: lanes hosts outbox
-- gives: asked_kinds room_of choose_lanes note_wishes bring_back_lanes ending ask_again
-- Which lanes may start, how many tasks of each, and the state of the crawl in the answer to a lease call.

-- The kinds that a call asks for, separated by commas; "": only http.
function asked_kinds(text)
  if not text or text == '' then return {HTTP} end
  local kinds = {}
  for kind in string.gmatch(text, '[^,]+') do
    -- First, so that a crawl with one kind reads only that index.
    if kind == HTTP then table.insert(kinds, 1, kind) else kinds[#kinds + 1] = kind end
  end
  return kinds
end

-- How many tasks of these kinds the lane may start within the horizon.
function room_of(lane, kinds, limit, horizon)
  local waiting = waiting_of(lane, kinds)
  if waiting == 0 or not is_ready(lane) then return 0 end
  if lane_rules.needs_opening(lane) then return 1 end
  local limits = lane.limits
  if not limits then return lane_rules.starts_within(math.min(waiting, lane.cap - lane.in_flight, limit), lane, horizon) end
  return lane_rules.starts_within(math.min(waiting, limits.cap - lane.in_flight - limits.in_flight, limits.turns, limit),
    {interval = limits.interval, next_start = math.max(lane.next_start, limits.not_before)}, horizon)
end

local function members_of(kind, limit, horizon, ...)
  return call('ZRANGEBYSCORE', P .. ready_key(kind), '-inf', now + horizon, 'LIMIT', 0, limit, ...)
end

local function starts_first(one, other)
  return one.start < other.start or (one.start == other.start and one.member < other.member)
end

-- The distinct members of the indexes of several kinds.
local function members_of_kinds(kinds, limit, horizon)
  local entries, is_there, members = {}, {}, {}
  for i = 1, #kinds do
    local own = members_of(kinds[i], limit, horizon, 'WITHSCORES')
    for j = 1, #own, 2 do
      if not is_there[own[j]] then entries[#entries + 1] = {member = own[j], start = tonumber(own[j + 1])} end
      is_there[own[j]] = true
    end
  end
  table.sort(entries, starts_first)
  for i = 1, math.min(limit, #entries) do members[i] = entries[i].member end
  return members
end

-- The lanes that may start tasks of these kinds, longest-waiting first. Call it after all changes so far are saved.
local function ready_lanes(kinds, limit, horizon)
  if crawl.state ~= 'running' or limit == 0 then return {} end
  local found = {}
  local members = #kinds == 1 and members_of(kinds[1], limit, horizon) or members_of_kinds(kinds, limit, horizon)
  for _, member in ipairs(members) do
    local lane = need_lane(string.sub(member, 9))
    if lane.member == member then
      found[#found + 1] = lane
    else
      -- The lane's record was lost: it has another age now.
      for i = 1, #kinds do call('ZREM', P .. ready_key(kinds[i]), member) end
      call('ZREM', P .. 'busy', member)
    end
  end
  return found
end

-- The lanes that may start, and those that other crawls hold back, which are replaced by the next ones at most MAX_LOOKS times.
function choose_lanes(kinds, limit, horizon)
  local chosen, held, is_held = {}, {}, {}
  for _ = 1, MAX_LOOKS do
    local before, found = #held, ready_lanes(kinds, limit + #held, horizon)
    chosen = {}
    local examined = 0
    for i = 1, #found do
      local lane = found[i]
      if not is_held[lane] and examined < limit then
        examined = examined + 1
        local sharing = lane.sharing
        if sharing == SHARED or (sharing == ALONE and crawl.needs_rules and lane_rules.needs_opening(lane)) then hosts.look(lane) end
        if lane.limits and hosts.hold_back(lane, horizon) then
          held[#held + 1], is_held[lane] = lane, true
        else
          chosen[#chosen + 1] = lane
        end
      end
    end
    if #held == before then break end
  end
  return chosen, held
end

-- Note until when these lanes want a start slot and their limits count. `is_served`: the worker got all that it asked for.
function note_wishes(list, is_served)
  if not crawl.share then return end
  for i = 1, #list do
    local lane = list[i]
    if lane.sharing ~= APART then
      lane.wants_until, lane.heeded_until = lane_rules.wants(lane.waiting, lane.next_start, is_served)
    end
  end
end

-- Correct lanes whose next start is later than their pace and rests allow, a bounded number per call: it was written by a wrong clock.
-- In a cancelled crawl no lane has anything to start.
function bring_back_lanes()
  if is_cancelled then return end
  for _, kind in ipairs({HTTP, unpack(kind_names or {})}) do
    local members = call('ZREVRANGEBYSCORE', P .. ready_key(kind), '+inf', '(' .. format('%.17g', now + FAR_SECONDS), 'LIMIT', 0,
      MAX_BROUGHT_BACK)
    for _, member in ipairs(members) do
      local lane = need_lane(string.sub(member, 9))
      if not lane.via then lane_rules.bring_back(lane) end
    end
  end
end

-- "1": the crawl has nothing left to do (a running one becomes finished), or is stopped and nothing is leased. Saves the counters.
-- In a crawl of several shards: "q" and its moves so far: this shard is quiet; "o": entries of its outbox were left behind.
function ending()
  local is_stopped = crawl.state == 'stopped'
  local left = is_stopped and sum_of_counts('leased') or sum_of_counts('queued', 'delayed', 'leased')
  if is_sharded then
    local oldest = unpack(call('ZRANGE', P .. 'outbox', 0, 0))
    if oldest then return is_left_behind(oldest) and 'o' or '0' end
  end
  if left ~= 0 or crawl.state == 'paused' or (is_fed() and not is_stopped) then return '0' end
  if is_sharded then return 'q' .. moves_so_far() end
  if crawl.state == 'running' then
    call('HSET', P .. 'crawl', 'state', 'finished', 'finished', wall)
  end
  return '1'
end

-- Seconds until a stored task of these kinds can be leased, and the time of the crawl; then the crawls whose leases are overdue (see
-- crawl), each after a newline. `is_late`: the tasks wait for the exits of other workers.
function ask_again(kinds, is_late)
  local times = {}
  if crawl.state == 'running' then
    local names = {'later', 'leases'}
    for i = 1, #kinds do names[i + 2] = ready_key(kinds[i]) end
    for _, name in ipairs(names) do
      local _, due = unpack(call('ZRANGE', P .. name, 0, 0, 'WITHSCORES'))
      times[#times + 1] = tonumber(due)
    end
  end
  local seconds = lane_rules.ask_again_in(times)
  if is_late then seconds = math.max(seconds, BUSY_SECONDS) end
  return format('%.17g ', seconds) .. time_of_crawl() .. (crawl.overdue or '')
end
