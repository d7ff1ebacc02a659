-- Rosters: what a lane that goes via a pool knows of its exits, each by its place on the pool's roll.
--
-- lanes       behind a lane's record, nothing until it begins: size, place, length of flights (4 bytes each), flights; and unless
--             all exits are healthy and due: ring, off, stuck, number of nexts (4 bytes each), stuck since, starved since, first
--             rest (doubles), nexts, marks
--   size      of the roll as the lane knows it;  place: where the ring goes on
--   flights   place, how many side by side, requests in flight through each (3 bytes, 1 and 1), only where there are any; they
--             add up: more than 255 are in parts
--   stuck     the place of the exit that the lane keeps
--   nexts     place (4 bytes), next start (double); only those to come, the others may start
--   marks     a byte per place, without the zeros at the end (see MARK); ring, off: how many there are of these two
-- rests:LANE  place (4 bytes, the highest first: equals go by place) → when its rest is over; the ill ones and those put off
-- uses:LANE   place (4 bytes, as above) → ok, size, elapsed, cost, blocked, failed, requests of which nothing is known, streak,
--             rests until: nine doubles, written when a lease ends
local MARK = {
  RING = 0, -- healthy: its turn comes in the ring
  ILL = 1, -- turned away or failed, at rest
  TRIED = 2, -- turned away or failed, with requests in flight
  OFF = 3, -- healthy but put off: held by another lane
  GONE = 4, -- not in the pool now
  PARKED = 5, -- put off, too: it rests for every host
}
local NOWHERE, RECORD_SIZE, NONE = 4294967295, 104, {}
-- The byte order of most machines: nothing has to be turned around.
local ROSTER = '<I4I4I4'

local function member_of(place)
  return pack('>I4', place)
end

local read_roster, pack_roster
do
  local MORE, NEXT, NEXTS_AT_ONCE = '<I4I4I4I4ddd', 'I4d', 100

  local function read_flights(text, at, size)
    local flights, byte = {}, string.byte
    for i = at, at + size - 1, 5 do
      local low, middle, high, length, flight = byte(text, i, i + 4)
      local first = low + 256 * middle + 65536 * high
      for place = first, first + length - 1 do flights[place] = (flights[place] or 0) + flight end
    end
    return flights
  end

  local function run_of(first, length, flight)
    if length > 255 then return run_of(first, 255, flight) .. run_of(first + 255, length - 255, flight) end
    if flight > 255 then return run_of(first, length, 255) .. run_of(first, length, flight - 255) end
    local low = first % 256
    local middle = (first - low) / 256 % 256
    return string.char(low, middle, (first - 256 * middle - low) / 65536, length, flight)
  end

  -- Exits that stand side by side in the ring are mostly used alike: written as one, unless they are few among many.
  local function pack_flights(flights, size, few)
    if few * 16 < size then
      local text = ''
      for place, flight in pairs(flights) do text = text .. run_of(place, 1, flight) end
      return text
    end
    local runs, first, alike = {}
    for place = 0, size do
      if flights[place] ~= alike then
        if alike then runs[#runs + 1] = run_of(first, place - first, alike) end
        first, alike = place, flights[place]
      end
    end
    return table.concat(runs)
  end

  local function read_nexts(text, at, total)
    local nexts = {}
    while total > 0 do
      local part = math.min(total, NEXTS_AT_ONCE)
      local list = {unpack_struct('<' .. string.rep(NEXT, part), text, at)}
      for i = 1, 2 * part, 2 do nexts[list[i]] = list[i + 1] end
      at, total = list[2 * part + 1], total - part
    end
    return nexts, at
  end

  local function pack_nexts(roster)
    local list, last, parts = {}, 0, {}
    for place, start in pairs(roster.nexts) do
      if start > now then
        list[last + 1], list[last + 2] = place, start
        last = last + 2
      end
    end
    for i = 1, last, 2 * NEXTS_AT_ONCE do
      local to = math.min(i + 2 * NEXTS_AT_ONCE - 1, last)
      parts[#parts + 1] = pack('<' .. string.rep(NEXT, (to - i + 1) / 2), unpack(list, i, to))
    end
    return table.concat(parts), last / 2
  end

  -- What rosters have of which not all exits are healthy and due.
  local function read_more(roster, text, at)
    local off, stuck, nexts, stuck_since
    roster.ring, off, stuck, nexts, stuck_since, roster.starved, roster.first_rest, at = unpack_struct(MORE, text, at)
    if off > 0 then roster.off = off end
    if stuck ~= NOWHERE then roster.stuck, roster.stuck_since = stuck, stuck_since end
    if nexts > 0 then roster.nexts, at = read_nexts(text, at, nexts) end
    roster.marks = string.sub(text, at)
  end

  -- The roster that begins there in the text. A table of eight fields is much smaller than one of nine: what most rosters do not
  -- have is left out.
  function read_roster(text, at)
    local size, place, bytes
    size, place, bytes, at = unpack_struct(ROSTER, text, at)
    local roster = {
      size = size, place = place, ring = size, starved = 0, first_rest = NEVER, flights = read_flights(text, at, bytes),
      nexts = NONE, marks = '',
    }
    if at + bytes <= #text then read_more(roster, text, at + bytes) end
    return roster
  end

  -- Gives the flights, so many in all, and what comes behind them; size, place and the flights' length go with the lane's record.
  function pack_roster(roster, total)
    local flights = total > 0 and pack_flights(roster.flights, roster.size, total) or ''
    -- With all in the ring nobody rests.
    if roster.ring == roster.size and roster.nexts == NONE and roster.starved == 0 and not roster.stuck then
      return flights, ''
    end
    local nexts, late = pack_nexts(roster)
    return flights, pack(MORE, roster.ring, roster.off or 0, roster.stuck or NOWHERE, late, roster.stuck_since or 0, roster.starved,
      roster.first_rest) .. nexts .. roster.marks
  end
end

-- Whether the lane has a roster: it begins when the lane lends for the first time.
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

-- It rests no more; gives the time until which it did.
local function end_rest(lane, place)
  local key, member = P .. 'rests:' .. lane.name, member_of(place)
  local due = call('ZSCORE', key, member)
  call('ZREM', key, member)
  lane.roster.first_rest = nil
  return tonumber(due) or 0
end

-- When the first rest is over; looked up again when rests have changed.
local function first_rest_of(lane)
  local roster = lane.roster
  if not roster.first_rest then
    roster.first_rest = tonumber(call('ZRANGE', P .. 'rests:' .. lane.name, 0, 0, 'WITHSCORES')[2]) or NEVER
  end
  return roster.first_rest
end

-- The rests of a lane end; gives until when each exit rested, by member.
local function end_rests(lane)
  local key, dues = P .. 'rests:' .. lane.name, {}
  local page = call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #page, 2 do dues[page[i]] = tonumber(page[i + 1]) end
  call('DEL', key)
  return dues
end

-- Make the marks and the rests anew, from the roll, from how the exits did and from what is in flight; none may be used earlier than
-- before. Unless a crash may have cut something off, a lane without marks has neither rests nor streaks.
local function review_roster(lane, may_be_torn)
  local roster, roll, rests, marks, page, dues = roster_of(lane), lane.roll, {}, {}, {}, {}
  local old_marks = may_be_torn and '' or roster.marks
  if may_be_torn or roster.marks ~= '' then
    page, dues = call('HGETALL', P .. 'uses:' .. lane.name), end_rests(lane)
  end
  roster.size, roster.ring, roster.off, roster.marks = roll.size, roll.present, nil, roll.marks
  local function is_gone(place)
    return string.byte(roll.marks, place + 1) == MARK.GONE
  end
  local function mark_and_rest(place, mark, member, due)
    roster.ring, marks[place] = roster.ring - 1, string.char(mark)
    if mark == MARK.OFF then roster.off = (roster.off or 0) + 1 end
    if mark ~= MARK.TRIED then rests[#rests + 1], rests[#rests + 2] = due, member end
  end
  for member, due in pairs(dues) do
    local place = unpack_struct('>I4', member)
    local mark = string.byte(old_marks, place + 1)
    if (mark == MARK.OFF or mark == MARK.PARKED) and not is_gone(place) then
      if roster.flights[place] then set_next(roster, place, due) else mark_and_rest(place, mark, member, due) end
    end
  end
  for i = 1, #page, 2 do
    local place, streak, rests_until = unpack_struct('>I4', page[i]), unpack_struct('<dd', page[i + 1], 57)
    if streak > 0 then
      local before, is_used = dues[page[i]] or roster.nexts[place] or 0, roster.flights[place]
      local due = before > now and math.max(rests_until, before) or rests_until
      local is_kept = is_used or (is_gone(place) and due > rests_until)
      set_next(roster, place, is_kept and due or nil)
      if not is_gone(place) then mark_and_rest(place, is_used and MARK.TRIED or MARK.ILL, page[i], due) end
    end
  end
  if next(marks) then
    local all = {}
    for place = 0, roll.size - 1 do all[place + 1] = marks[place] or string.char(string.byte(roll.marks, place + 1) or 0) end
    roster.marks = without_last_zeros(table.concat(all))
  end
  write_in_parts('ZADD', P .. 'rests:' .. lane.name, rests)
  roster.first_rest, lane.exits, lane.looks = nil, 0, false
end
