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
-- uses:LANE   place (4 bytes, as above) → ok, size, elapsed, cost, blocked, failed, requests of which nothing is known, streak,
--             rests until: nine doubles, written when a lease ends
local MARK = {
  RING = 0, -- healthy: its turn comes in the ring
  ILL = 1, -- turned away or failed, at rest
  TRIED = 2, -- turned away or failed, with requests in flight
  OFF = 3, -- healthy but put off: parked, or held by another lane
  GONE = 4, -- not in the pool now
}
local NOWHERE, RECORD_SIZE, NONE = 4294967295, 104, {}

local function member_of(place)
  return pack('>I4', place)
end

local read_roster, pack_roster, starved_since
do
  -- The byte order of most machines: nothing has to be turned around.
  local HEAD, AT_STARVED = '<I4I4I4I4I4I4I4ddd', 36
  local FLIGHT, NEXT, FEW, MANY = 'I4I4', 'I4d', 3, 100

  -- A table for a few of them would cost more than reading them one by one.
  local function read_pairs(map, text, at, total, kind)
    if total <= FEW then
      for _ = 1, total do
        local place, value, behind = unpack_struct('<' .. kind, text, at)
        map[place], at = value, behind
      end
      return at
    end
    local part = math.min(total, MANY)
    local list = {unpack_struct('<' .. string.rep(kind, part), text, at)}
    for i = 1, 2 * part, 2 do map[list[i]] = list[i + 1] end
    return read_pairs(map, text, list[2 * part + 1], total - part, kind)
  end

  local function pack_pairs(list, kind)
    local text = ''
    for i = 1, #list, 2 * MANY do
      local last = math.min(i + 2 * MANY - 1, #list)
      text = text .. pack('<' .. string.rep(kind, (last - i + 1) / 2), unpack(list, i, last))
    end
    return text
  end

  local function pack_flights(flights)
    local place, flight = next(flights)
    if not place then return '', 0 end
    if not next(flights, place) then return pack('<' .. FLIGHT, place, flight), 1 end
    local list, last = {}, 0
    for place, flight in pairs(flights) do
      list[last + 1], list[last + 2] = place, flight
      last = last + 2
    end
    return pack_pairs(list, FLIGHT), last / 2
  end

  local function pack_nexts(roster)
    if not next(roster.nexts) then return '', 0 end
    local list, last, marks = {}, 0, roster.marks
    for place, start in pairs(roster.nexts) do
      if start > now or place == roster.stuck or string.byte(marks, place + 1) == MARK.TRIED then
        list[last + 1], list[last + 2] = place, start
        last = last + 2
      end
    end
    return pack_pairs(list, NEXT), last / 2
  end

  -- The roster that begins there in the text.
  function read_roster(text, at)
    local size, place, ring, off, stuck, flights, nexts, stuck_since, starved, first_rest
    size, place, ring, off, stuck, flights, nexts, stuck_since, starved, first_rest, at = unpack_struct(HEAD, text, at)
    -- What most rosters do not have is left out: a table of eight fields is much smaller than one of nine.
    local roster = {
      size = size, place = place, ring = ring, starved = starved, first_rest = first_rest, flights = {}, nexts = NONE, marks = '',
    }
    if off > 0 then roster.off = off end
    if stuck ~= NOWHERE then roster.stuck, roster.stuck_since = stuck, stuck_since end
    if flights > 0 then at = read_pairs(roster.flights, text, at, flights, FLIGHT) end
    if nexts > 0 then
      roster.nexts = {}
      at = read_pairs(roster.nexts, text, at, nexts, NEXT)
    end
    if at <= #text then roster.marks = string.sub(text, at) end
    return roster
  end

  function pack_roster(roster)
    local flights, total = pack_flights(roster.flights)
    local nexts, late = pack_nexts(roster)
    return pack(HEAD, roster.size, roster.place, roster.ring, roster.off or 0, roster.stuck or NOWHERE, total, late,
      roster.stuck_since or 0, roster.starved, roster.first_rest) .. flights .. nexts .. roster.marks
  end

  -- Since when the lane starves whose roster begins there.
  function starved_since(text, at)
    return (unpack_struct('<d', text, at + AT_STARVED))
  end
end

-- Whether the lane has a roster: it begins with the first use of an exit.
local function has_begun(lane)
  return lane.roster or #lane.value > RECORD_SIZE
end

-- The lane's roster; if need be it begins.
local function roster_of(lane)
  if lane.roster then return lane.roster end
  if has_rows == nil then has_rows = call('EXISTS', P .. 'exits') == 1 end
  local roll = roll_of(lane.via)
  lane.roll = roll
  if #lane.value > RECORD_SIZE then
    lane.roster = read_roster(lane.value, RECORD_SIZE + 1)
  else
    local turn = call('HINCRBY', P .. 'turns:via', lane.via, 1) - 1
    lane.roster = {
      size = roll.size, place = turn % math.max(1, roll.size), ring = roll.present, starved = 0, first_rest = NEVER, flights = {},
      nexts = NONE, marks = roll.marks,
    }
  end
  return lane.roster
end

local function mark_at(roster, place)
  return string.byte(roster.marks, place + 1) or MARK.RING
end

-- Nil: it may start now.
local function set_next(roster, place, start)
  if start and roster.nexts == NONE then roster.nexts = {} end
  if start or roster.nexts[place] then roster.nexts[place] = start end
end

local function without_last_zeros(marks)
  local _, last = string.find(marks, '^.*[^%z]')
  return string.sub(marks, 1, last or 0)
end

local function set_mark(roster, place, mark)
  local marks, old = roster.marks, mark_at(roster, place)
  if old == mark then return end
  if old == MARK.RING then roster.ring = roster.ring - 1 elseif old == MARK.OFF then roster.off = roster.off - 1 end
  if mark == MARK.RING then roster.ring = roster.ring + 1 elseif mark == MARK.OFF then roster.off = (roster.off or 0) + 1 end
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
  local roster, roll, rests, marks = roster_of(lane), lane.roll, {}, {}
  local page = call('HGETALL', P .. 'uses:' .. lane.name)
  roster.size, roster.ring, roster.off, roster.marks = roll.size, roll.present, nil, roll.marks
  for i = 1, #page, 2 do
    local place, streak, until_then = unpack_struct('>I4', page[i]), unpack_struct('<dd', page[i + 1], 57)
    if streak > 0 then
      local is_gone, is_used = string.byte(roll.marks, place + 1) == MARK.GONE, roster.flights[place]
      set_next(roster, place, is_used and until_then or nil)
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
