-- needs: free_exits offers other_lanes
-- gives: pick_exit start_exit gives_up
-- Which exit a lane takes next, in the order of rules/exits.py, and the effect of a start on the exit.

local put_off_so_far = 0

local function is_free(roster, index, cap)
  local flight, elsewhere = roster.flights[index], roster.elsewhere
  if elsewhere and elsewhere[index] then flight = (flight or 0) + elsewhere[index] end
  return not flight or flight < cap
end

local function without(members, away)
  local own = {}
  for i = 1, #members do
    if not away[unpack_struct('>I4', members[i])] then own[#own + 1] = members[i] end
  end
  return own
end

-- The first exit whose rest is over. Read in portions; the rest of each exit that was read ends or is set anew.
local function rested_index(lane, total)
  local roster, away = lane.roster, offers.away_from(lane.pool)
  local rested = roster.rested
  if not rested or rested.first > #rested then
    if first_rest_of(lane) > now then return nil end
    if away then
      rested = without(call('ZRANGEBYSCORE', P .. 'rests:' .. lane.name, '-inf', now), away)
    else
      rested = call('ZRANGEBYSCORE', P .. 'rests:' .. lane.name, '-inf', now, 'LIMIT', 0, total)
    end
    roster.rested, rested.first = rested, 1
  end
  if #rested == 0 then return nil end
  rested.first = rested.first + 1
  return (unpack_struct('>I4', rested[rested.first - 1]))
end

local function comes_before(one, other)
  return one.start < other.start or (one.start == other.start and one.index < other.index)
end

-- The healthy, free exit that is due first, after now and until `latest`.
local function early_index(roster, cap, latest, away)
  local early = roster.early
  if not early then
    early = {first = 1}
    for index, start in pairs(roster.next_starts) do
      if start > now and start <= latest and is_free(roster, index, cap) and mark_at(roster, index) == HEALTHY
        and not (away and away[index]) then
        early[#early + 1] = {index = index, start = start}
      end
    end
    table.sort(early, comes_before)
    roster.early = early
  end
  local entry = early[early.first]
  if not entry then return nil end
  early.first = early.first + 1
  return entry.index
end

-- The exit may be used again in this call. Most exits are appended to the list.
local function give_back(early, index, start)
  local entry, at = {index = index, start = start}, #early + 1
  while at > early.first and comes_before(entry, early[at - 1]) do
    early[at] = early[at - 1]
    at = at - 1
  end
  early[at] = entry
end

-- The prefix of another crawl that holds this exit of an exclusive pool, or nil; and whether its leases must be reclaimed first.
local function held_elsewhere(pool, exit)
  local prefix = pool.exclusive ~= 0 and other_lanes.holder(exit)
  if not prefix then return nil, false end
  return prefix, other_lanes.note_overdue(prefix)
end

-- The mark PARKED or HELD of an exit that the lane may not use now, and until when; nil: it may.
local function is_put_off(lane, index, is_held)
  local roster, row = lane.roster, find_exit(name_at(lane.pool, index))
  if not row and not is_held then return false end
  local mark, due = exit_rules.put_off(row and row.parked_until or 0, is_held or row.holder ~= 0, roster.next_starts[index] or 0)
  if not mark then return false end
  put_off_so_far = put_off_so_far + 1
  if mark_at(roster, index) ~= QUARANTINED then
    set_mark(roster, index, mark)
    set_next_start(roster, index, nil)
  end
  rest(lane, index, due)
  return true
end

-- The kept exit of a host of a sticky pool, if it may be used; nil: the host waits for it.
local function usable_kept_index(lane, index, latest)
  local away = offers.away_from(lane.pool)
  if away and away[index] then return nil end
  local roster, row = lane.roster, has_exit_rows and find_exit(name_at(lane.pool, index))
  local start = roster.next_starts[index] or 0
  if (row and row.holder ~= 0) or held_elsewhere(lane.pool, name_at(lane.pool, index)) then
    set_next_start(roster, index, math.max(start, now + BUSY_SECONDS))
    return nil
  end
  return is_free(roster, index, lane.pool.cap) and start <= latest and index or nil
end

local function next_exit(lane, latest, total)
  local roster, pool = lane.roster, lane.pool
  local away = offers.away_from(pool)
  local is_exclusive = pool.exclusive ~= 0
  if not has_exit_rows and not is_exclusive and pool.sticky == 0 and (roster.first_rest or 0) > now then
    -- Nearly always the next one.
    local index = roster.next_index
    if roster.marks == '' and roster.next_starts == NONE and index < roster.size and not roster.flights[index] and not away
      and not roster.elsewhere then
      return index
    end
    return due_in_ring(roster, pool.cap, away) or early_index(roster, pool.cap, latest, away)
  end
  local kept = pool.sticky ~= 0 and kept_index(lane)
  if kept then return usable_kept_index(lane, kept, latest) end
  repeat
    local index = rested_index(lane, total) or due_in_ring(roster, pool.cap, away) or early_index(roster, pool.cap, latest, away)
    if not index then return nil end
    local prefix, is_overdue = held_elsewhere(pool, name_at(pool, index))
    if is_overdue then return nil end
    if not (has_exit_rows or prefix) or not is_put_off(lane, index, prefix) then
      if pool.sticky ~= 0 then roster.kept_index, roster.kept_since = index, now end
      return index
    end
  until put_off_so_far >= MAX_PUT_OFF
  return nil
end

-- The index of the exit to use next, until `latest`; nil: none. `total`: how many exits this call asks for.
function pick_exit(lane, latest, total)
  local index = next_exit(lane, latest, total)
  if not index and lane.pool.away then lane.was_passed_over, offers.was_passed_over = true, true end
  return index
end

-- The lease holds an exit of an exclusive pool, and is the only one to try an exit that was parked.
local function occupy(pool, index, token)
  local exit = name_at(pool, index)
  local row = pool.exclusive ~= 0 and need_exit(exit) or find_exit(exit)
  if not row then return end
  if pool.exclusive ~= 0 then
    row.holder = token
    other_lanes.hold(exit)
  end
  local is_on_trial = exit_rules.parking_on_trial(row, pool, token)
  if pool.exclusive ~= 0 or is_on_trial then save_exit(exit) end
end

-- Count a request that starts through the exit. If the exit rested, it is on probation or healthy now.
function start_exit(lane, index, at, terms)
  local roster, pool, is_healthy = lane.roster, lane.pool, true
  local flight, next_start = (roster.flights[index] or 0) + 1, at + pool.interval
  local mark = roster.marks == '' and HEALTHY or mark_at(roster, index)
  if mark == HEALTHY then
    roster.next_index = index + 1
  else
    is_healthy = mark ~= QUARANTINED
    end_rest(lane, index)
    set_mark(roster, index, is_healthy and HEALTHY or ON_PROBATION)
  end
  roster.flights[index] = flight
  if exit_rules.is_out_of_patience(roster.starved_since, pool) then roster.starved_since = now end
  if next_start > now then
    set_next_start(roster, index, next_start)
  elseif roster.next_starts[index] then
    roster.next_starts[index] = nil
  end
  if is_healthy and flight < pool.cap then
    -- Writing nil to a missing field costs as much as a new field.
    if next_start <= now then
      if roster.is_round_done then roster.is_round_done = nil end
    elseif roster.early and next_start <= terms.latest then
      give_back(roster.early, index, next_start)
    end
  end
  if has_exit_rows or pool.exclusive ~= 0 then occupy(pool, index, terms.token) end
end

-- Whether the lane gives up its tasks: its exits rested for too long, or the pool does not exist.
function gives_up(lane)
  local roster = roster_of(lane)
  return exit_rules.gives_up(lane.pool, roster.starved_since, has_healthy_exit(roster), function() return first_rest_of(lane) end)
end
