-- Picking exits: which one a lane takes next, and what a start through it does to it.

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

  local function comes_before(one, other)
    return one.next < other.next or (one.next == other.next and one.place < other.place)
  end

  -- The first of those in the ring that are free but due later, not later than `latest`.
  local function early_place(roster, cap, latest)
    local early = roster.early
    if not early then
      early = {first = 1}
      for place, next in pairs(roster.nexts) do
        if next > now and next <= latest and is_free(roster, place, cap) and mark_at(roster, place) == MARK.RING then
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

  local function put_off(lane, place, mark, due)
    local roster = lane.roster
    put_off_so_far = put_off_so_far + 1
    if mark_at(roster, place) ~= MARK.ILL then
      set_mark(roster, place, mark)
      set_next(roster, place, nil)
    end
    rest(lane, place, due)
  end

  -- Whether the exit has to wait for somebody else; then it is put off.
  local function has_to_wait(lane, place)
    local row = find_exit(name_at(lane.roll, place))
    if not row then return false end
    local next = math.max(now, lane.roster.nexts[place] or 0)
    if row.parked > next then
      put_off(lane, place, MARK.PARKED, row.parked)
      return true
    end
    if row.holder == 0 then return false end
    put_off(lane, place, MARK.OFF, math.max(next, now + BUSY_SECONDS))
    return true
  end

  local function kept_place(lane, place, latest)
    local roster, row = lane.roster, has_rows and find_exit(name_at(lane.roll, place))
    local next = roster.nexts[place] or 0
    if row and row.holder ~= 0 then
      set_next(roster, place, math.max(next, now + BUSY_SECONDS))
      return nil
    end
    return is_free(roster, place, lane.roll.cap) and next <= latest and place or nil
  end

  -- The place of the exit that is used next, not later than `latest`; nil when there is none. So many are asked for in this call.
  function pick_exit(lane, latest, total)
    local roster, pool = lane.roster, lane.roll
    if not has_rows and pool.sticky == 0 and (roster.first_rest or 0) > now then
      -- As a rule it is the next one.
      local place = roster.place
      if roster.marks == '' and roster.nexts == NONE and place < roster.size and not roster.flights[place] then return place end
      return due_place(roster, pool.cap) or early_place(roster, pool.cap, latest)
    end
    local stuck = pool.sticky ~= 0 and stuck_place(lane)
    if stuck then return kept_place(lane, stuck, latest) end
    repeat
      local place = rested_place(lane, total) or due_place(roster, pool.cap) or early_place(roster, pool.cap, latest)
      if not place then return nil end
      if not has_rows or not has_to_wait(lane, place) then
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

  -- One that rested is well again or tried; gives whether it is in the ring from here on.
  local function wake_up(lane, place, mark)
    end_rest(lane, place)
    set_mark(lane.roster, place, mark == MARK.ILL and MARK.TRIED or MARK.RING)
    return mark ~= MARK.ILL
  end

  -- A request goes out through the exit.
  function start_exit(lane, place, at, terms)
    local roster, pool, is_in_ring = lane.roster, lane.roll, true
    local flight, next = (roster.flights[place] or 0) + 1, at + pool.interval
    local mark = roster.marks == '' and MARK.RING or mark_at(roster, place)
    if mark == MARK.RING then roster.place = place + 1 else is_in_ring = wake_up(lane, place, mark) end
    roster.flights[place] = flight
    if roster.starved > 0 and now >= roster.starved + pool.patience then roster.starved = now end
    if next > now then
      set_next(roster, place, next)
    elseif roster.nexts[place] then
      roster.nexts[place] = nil
    end
    if is_in_ring and flight < pool.cap then
      -- Where there is no such field, to write nil would cost as much as a new one.
      if next <= now then
        if roster.is_round_done then roster.is_round_done = nil end
      elseif roster.early and next <= terms.latest then
        give_back(roster.early, place, next)
      end
    end
    if has_rows or pool.exclusive ~= 0 then occupy(pool, place, terms.token) end
  end
end

-- Whether all exits of the lane rested for too long, or there are none. One whose rest was over before that, or that came later,
-- is tried.
local function has_lost_patience(lane)
  local roster, pool = roster_of(lane), lane.roll
  if not pool.exists then return true end
  local last = roster.starved + pool.patience
  if roster.starved == 0 or now < last or roster.ring + (roster.off or 0) > 0 then return false end
  return first_rest_of(lane) >= last
end
