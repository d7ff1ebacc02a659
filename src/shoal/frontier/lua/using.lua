-- Using exits: which one a lane takes next, what a start through it does to it, and when the lane may start again.

-- The place of the exit that a host of a sticky pool keeps, while it is healthy.
local function stuck_place(lane, pool)
  local roster = lane.roster
  local place = roster.stuck
  if pool.sticky == 0 or place == NOWHERE or mark_at(roster, place) ~= MARK.RING then return nil end
  if pool.rotate > 0 and now >= roster.stuck_since + pool.rotate then return nil end
  local row = has_exits() and find_exit(name_at(pool, place))
  return (not row or row.parked <= now) and place or nil
end

local pick_exit, start_exit
do
  local BUSY_SECONDS, MAX_PUT_OFF = 0.25, 500
  local put_off_so_far = 0

  local function is_free(roster, place, cap)
    local flight = roster.flights[place]
    return not flight or flight < cap
  end

  -- The first one whose rest is over. They are read some at a time; each one read leaves its rest or gets a new one.
  local function rested_place(lane, total)
    local roster = lane.roster
    local rested = roster.rested
    if not rested or rested.first > #rested then
      if first_rest_of(lane) > now then return nil end
      rested = call('ZRANGEBYSCORE', P .. 'rests:' .. lane.name, '-inf', now, 'LIMIT', 0, total)
      roster.rested, rested.first = rested, 1
    end
    if #rested == 0 then return nil end
    rested.first = rested.first + 1
    return (unpack_struct('>I4', rested[rested.first - 1]))
  end

  -- The next one in the ring that is free and due.
  local function due_place(roster, cap)
    if roster.is_round_done then return nil end
    local marks, flights, nexts = roster.marks, roster.flights, roster.nexts
    local place, last = roster.place, roster.size
    for _ = 1, 2 do
      while place < last do
        if place < #marks then place = (string.find(marks, '\0', place + 1, true) or #marks + 1) - 1 end
        if place >= last then break end
        local flight, next = flights[place], nexts[place]
        if (not flight or flight < cap) and (not next or next <= now) then return place end
        place = place + 1
      end
      place, last = 0, roster.place
    end
    roster.is_round_done = true
    return nil
  end

  local function comes_before(one, other)
    return one.next < other.next or (one.next == other.next and one.place < other.place)
  end

  -- The first of those in the ring that are free but due later, not later than `latest`.
  local function early_place(roster, cap, latest)
    local early = roster.early
    if not early then
      early = {first = 1}
      for place, next in pairs(roster.nexts) do
        if next > now and next <= latest and mark_at(roster, place) == MARK.RING and is_free(roster, place, cap) then
          early[#early + 1] = {place = place, next = next}
        end
      end
      table.sort(early, comes_before)
      roster.early = early
    end
    local entry = early[early.first]
    if not entry then return nil end
    early.first = early.first + 1
    return entry.place
  end

  -- The exit may be used again in this call. Most come in at the end.
  local function give_back(early, place, next)
    local entry, at = {place = place, next = next}, #early + 1
    while at > early.first and comes_before(entry, early[at - 1]) do
      early[at] = early[at - 1]
      at = at - 1
    end
    early[at] = entry
  end

  local function put_off(lane, place, due)
    local roster = lane.roster
    put_off_so_far = put_off_so_far + 1
    if mark_at(roster, place) == MARK.RING then
      set_mark(roster, place, MARK.OFF)
      roster.nexts[place] = due
    end
    rest(lane, place, due)
  end

  -- Whether the exit has to wait for somebody else; then it is put off.
  local function has_to_wait(lane, pool, place)
    local row = find_exit(name_at(pool, place))
    if not row then return false end
    local next = math.max(now, lane.roster.nexts[place] or 0)
    if row.parked > next then
      put_off(lane, place, row.parked)
      return true
    end
    if row.holder == 0 then return false end
    put_off(lane, place, math.max(next, now + BUSY_SECONDS))
    return true
  end

  local function kept_place(lane, pool, place, latest)
    local roster, row = lane.roster, has_exits() and find_exit(name_at(pool, place))
    local next = roster.nexts[place] or 0
    if row and row.holder ~= 0 then
      roster.nexts[place] = math.max(next, now + BUSY_SECONDS)
      return nil
    end
    return is_free(roster, place, pool.cap) and next <= latest and place or nil
  end

  -- The place of the exit that is used next, not later than `latest`; nil when there is none. So many are asked for in this call.
  function pick_exit(lane, pool, latest, total)
    local roster = lane.roster
    local stuck = pool.sticky ~= 0 and stuck_place(lane, pool)
    if stuck then return kept_place(lane, pool, stuck, latest) end
    repeat
      local place = rested_place(lane, total) or due_place(roster, pool.cap) or early_place(roster, pool.cap, latest)
      if not place then return nil end
      if not has_exits() or not has_to_wait(lane, pool, place) then
        if pool.sticky ~= 0 then roster.stuck, roster.stuck_since = place, now end
        return place
      end
    until put_off_so_far >= MAX_PUT_OFF
    return nil
  end

  local function occupy(pool, place, token)
    local exit = name_at(pool, place)
    local row = pool.exclusive ~= 0 and need_exit(exit) or find_exit(exit)
    if not row then return end
    if pool.exclusive ~= 0 then row.holder = token end
    if row.strikes >= STRIKES then row.parked, row.trial = now + pool.quarantine, token end
    if pool.exclusive ~= 0 or row.strikes >= STRIKES then save_exit(exit) end
  end

  -- A request goes out through the exit.
  function start_exit(lane, pool, place, at, terms)
    local roster = lane.roster
    local mark, flight, next = mark_at(roster, place), (roster.flights[place] or 0) + 1, at + pool.interval
    roster.flights[place] = flight
    roster.nexts[place] = (next > now or mark == MARK.ILL or place == roster.stuck) and next or nil
    if mark == MARK.RING then
      roster.place = place + 1
    else
      end_rest(lane, place)
      set_mark(roster, place, mark == MARK.ILL and MARK.TRIED or MARK.RING)
    end
    if mark ~= MARK.ILL and flight < pool.cap then
      if next <= now then
        roster.is_round_done = false
      elseif roster.early and next <= terms.latest then
        give_back(roster.early, place, next)
      end
    end
    if pool.exclusive ~= 0 or has_exits() then occupy(pool, place, terms.token) end
  end
end

-- A lane all of whose exits were turned away or failed is starved, from the moment when that is so.
local function note_starved(roster)
  if roster.ring + roster.off > 0 then
    roster.starved = 0
  elseif roster.starved == 0 then
    roster.starved = now
  end
end

-- Say on the lane when an exit is free next.
local function refresh_exits(lane)
  local pool, roster = find_pool(lane.via), roster_of(lane)
  lane.looks = false
  if not pool then return end
  local flights, nexts, cap = roster.flights, roster.nexts, pool.cap
  local stuck = stuck_place(lane, pool)
  if stuck then
    lane.exits = (flights[stuck] or 0) < cap and (nexts[stuck] or 0) or NEVER
    return
  end
  local due, soonest = roster.ring, first_rest_of(lane)
  for place, flight in pairs(flights) do
    if flight >= cap and mark_at(roster, place) == MARK.RING then due = due - 1 end
  end
  for place, next in pairs(nexts) do
    if next > now and (flights[place] or 0) < cap and mark_at(roster, place) == MARK.RING then
      due, soonest = due - 1, math.min(soonest, next)
    end
  end
  lane.exits = (due > 0 or soonest <= now) and 0 or soonest
  note_starved(roster)
  if roster.starved > 0 then lane.exits = math.min(lane.exits, roster.starved + pool.patience) end
end

-- Lanes whose exits changed look at them when the call is done with them.
local look_later, look_now
do
  local looking = {}

  function look_later(lane)
    if lane.looks then return end
    lane.looks = true
    looking[#looking + 1] = lane
  end

  -- Only lanes of sticky pools, where these alone matter.
  function look_now(only_sticky)
    local others = {}
    for _, lane in ipairs(looking) do
      local pool = only_sticky and find_pool(lane.via)
      if only_sticky and (not pool or pool.sticky == 0) then
        others[#others + 1] = lane
      elseif lane.looks then
        refresh_exits(lane)
      end
    end
    looking = others
  end
end

-- Whether all exits of the lane were turned away or failed.
local function do_exits_rest(lane)
  return lane.via and find_pool(lane.via) and starved_since(lane.tail) > 0
end

-- Whether all exits of the lane rested for too long, or there are none.
local function has_lost_patience(lane, pool)
  local since = roster_of(lane).starved
  return not pool or (since > 0 and now >= since + pool.patience)
end
