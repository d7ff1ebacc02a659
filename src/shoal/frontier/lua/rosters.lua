-- Rosters: what a lane that goes via a pool knows of its exits, each by its place on the pool's roll.
--
-- lanes       behind a lane's record, nothing until it begins: size, place, ring, off, stuck, number of flights, number of
--             nexts (4 bytes each), stuck since, starved since, first rest (doubles), flights, nexts, marks
--   size      of the roll as the lane knows it;  place: where the ring goes on
--   stuck     the place of the exit that the lane keeps
--   flights   place, requests in flight (4 bytes each); only where there are any
--   nexts     place (4 bytes), next start (double); only those to come, that of the exit it keeps and those of exits that are
--             tried. The others may start.
--   marks     a byte per place, without the zeros at the end (see MARK); ring, off: how many there are of these two
-- rests:LANE  place (4 bytes, the highest first: equals go by place) → when its rest is over; the ill ones and those put off
-- uses:LANE   place (4 bytes, as above) → requests that ended, ok, blocked, failed, size, elapsed, cost, streak, rests until:
--             nine doubles, written when a lease ends
local MARK = {
  RING = 0, -- healthy: its turn comes in the ring
  ILL = 1, -- turned away or failed, at rest
  TRIED = 2, -- turned away or failed, with requests in flight
  OFF = 3, -- healthy but put off: parked, or held by another lane
  GONE = 4, -- not in the pool now
}
local NOWHERE = 4294967295

local function member_of(place)
  return pack('>I4', place)
end

local read_roster, pack_roster, starved_since
do
  -- The byte order of most machines: nothing has to be turned around.
  local HEAD, FLIGHTS, NEXTS, PAIRS_AT_ONCE, AT_STARVED = '<I4I4I4I4I4I4I4ddd', 'I4I4', 'I4d', 100, 37

  local function read_pairs(map, text, at, total, kind)
    while total > 0 do
      local part = math.min(total, PAIRS_AT_ONCE)
      local list = {unpack_struct('<' .. string.rep(kind, part), text, at)}
      for i = 1, 2 * part, 2 do map[list[i]] = list[i + 1] end
      at, total = list[2 * part + 1], total - part
    end
    return at
  end

  local function pack_pairs(list, last, kind)
    if last == 0 then return '' end
    local parts = {}
    for i = 1, last, 2 * PAIRS_AT_ONCE do
      local to = math.min(i + 2 * PAIRS_AT_ONCE - 1, last)
      parts[#parts + 1] = pack('<' .. string.rep(kind, (to - i + 1) / 2), unpack(list, i, to))
    end
    return table.concat(parts)
  end

  function read_roster(text)
    local size, place, ring, off, stuck, flights, nexts, stuck_since, starved, first_rest, at = unpack_struct(HEAD, text)
    local roster = {
      size = size, place = place, ring = ring, off = off, stuck = stuck, stuck_since = stuck_since, starved = starved,
      first_rest = first_rest, flights = {}, nexts = {}, marks = '', is_round_done = false, early = false, rested = false,
    }
    at = read_pairs(roster.flights, text, at, flights, FLIGHTS)
    at = read_pairs(roster.nexts, text, at, nexts, NEXTS)
    if at <= #text then roster.marks = string.sub(text, at) end
    return roster
  end

  function pack_roster(roster)
    local flights, total, nexts, late, marks = {}, 0, {}, 0, roster.marks
    for place, flight in pairs(roster.flights) do
      flights[total + 1], flights[total + 2] = place, flight
      total = total + 2
    end
    for place, next in pairs(roster.nexts) do
      if next > now or place == roster.stuck or string.byte(marks, place + 1) == MARK.TRIED then
        nexts[late + 1], nexts[late + 2] = place, next
        late = late + 2
      end
    end
    return pack(HEAD, roster.size, roster.place, roster.ring, roster.off, roster.stuck, total / 2, late / 2, roster.stuck_since,
      roster.starved, roster.first_rest) .. pack_pairs(flights, total, FLIGHTS) .. pack_pairs(nexts, late, NEXTS) .. marks
  end

  function starved_since(text)
    return text ~= '' and unpack_struct('<d', text, AT_STARVED) or 0
  end
end

-- The lane's roster; it begins with its first use.
local function roster_of(lane)
  if lane.roster then return lane.roster end
  if lane.tail ~= '' then
    lane.roster = read_roster(lane.tail)
    return lane.roster
  end
  local turn, roll = call('HINCRBY', P .. 'turns:via', lane.via, 1) - 1, roll_of(lane.via)
  lane.roster = {
    size = roll.size, place = turn % math.max(1, roll.size), ring = roll.present, off = 0, stuck = NOWHERE, stuck_since = 0,
    starved = 0, first_rest = NEVER, flights = {}, nexts = {}, marks = roll.marks, is_round_done = false, early = false,
    rested = false,
  }
  return lane.roster
end

local function mark_at(roster, place)
  return string.byte(roster.marks, place + 1) or MARK.RING
end

local function without_last_zeros(marks)
  local _, last = string.find(marks, '^.*[^%z]')
  return string.sub(marks, 1, last or 0)
end

local function set_mark(roster, place, mark)
  local marks, old = roster.marks, mark_at(roster, place)
  if old == mark then return end
  if old == MARK.RING then roster.ring = roster.ring - 1 elseif old == MARK.OFF then roster.off = roster.off - 1 end
  if mark == MARK.RING then roster.ring = roster.ring + 1 elseif mark == MARK.OFF then roster.off = roster.off + 1 end
  if place >= #marks then
    roster.marks = marks .. string.rep('\0', place - #marks) .. string.char(mark)
  elseif mark == MARK.RING and place == #marks - 1 then
    roster.marks = without_last_zeros(string.sub(marks, 1, place))
  else
    roster.marks = string.sub(marks, 1, place) .. string.char(mark) .. string.sub(marks, place + 2)
  end
end

-- The exit rests until then.
local function rest(lane, place, due)
  call('ZADD', P .. 'rests:' .. lane.name, due, member_of(place))
  lane.roster.first_rest = nil
end

local function end_rest(lane, place)
  call('ZREM', P .. 'rests:' .. lane.name, member_of(place))
  lane.roster.first_rest = nil
end

-- When the first rest is over; looked up again when rests have changed.
local function first_rest_of(lane)
  local roster = lane.roster
  if not roster.first_rest then
    roster.first_rest = tonumber(call('ZRANGE', P .. 'rests:' .. lane.name, 0, 0, 'WITHSCORES')[2]) or NEVER
  end
  return roster.first_rest
end

-- Make the marks and the rests anew, from the roll, from how the exits did and from what is in flight.
local function review_roster(lane)
  local roster, roll, rests, marks = roster_of(lane), roll_of(lane.via), {}, {}
  local page = call('HGETALL', P .. 'uses:' .. lane.name)
  roster.size, roster.ring, roster.off, roster.marks = roll.size, roll.present, 0, roll.marks
  for i = 1, #page, 2 do
    local place, streak, until_then = unpack_struct('>I4', page[i]), unpack_struct('<dd', page[i + 1], 57)
    if streak > 0 then
      local is_gone, is_used = string.byte(roll.marks, place + 1) == MARK.GONE, roster.flights[place]
      roster.nexts[place] = is_used and until_then or nil
      if not is_gone then
        roster.ring = roster.ring - 1
        marks[place] = string.char(is_used and MARK.TRIED or MARK.ILL)
      end
      if not is_gone and not is_used then
        rests[#rests + 1] = until_then
        rests[#rests + 1] = page[i]
      end
    end
  end
  if next(marks) then
    local all = {}
    for place = 0, roll.size - 1 do all[place + 1] = marks[place] or string.char(string.byte(roll.marks, place + 1) or 0) end
    roster.marks = without_last_zeros(table.concat(all))
  end
  call('DEL', P .. 'rests:' .. lane.name)
  write_in_parts('ZADD', P .. 'rests:' .. lane.name, rests)
  roster.first_rest, lane.exits, lane.looks = nil, 0, false
end
