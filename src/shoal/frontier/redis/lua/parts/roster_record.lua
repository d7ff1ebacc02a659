-- needs: exits
-- gives: NO_INDEX RECORD_SIZE NONE ROSTER member_of without_last_zeros read_roster pack_roster
-- The encoding of a lane's roster: the state of the exits of its pool towards the lane, by their index in the list of the pool's
-- exits (see exits).
--
-- lanes         after the record of a lane (see lanes), empty until the roster begins: size, next index, length of flights
--               (4 bytes each), flights; and unless all exits are healthy and due: healthy, held, kept, number of next starts
--               (4 bytes each), kept since, starved since, first rest (doubles), next starts, marks
--   size        the number of the pool's exits, as last read
--   next index  where the search for the next healthy exit continues, in a ring
--   flights     index, number of further exits with the same value, requests in flight through each (3 bytes, 1 and 1), without zeros;
--               entries for one exit add up: more than 255 are in several entries
--   kept        the index of the kept exit of a host of a sticky pool
--   next starts index (4 bytes), next start (double); only of exits that are not due
--   marks       a byte per index, without the zeros at the end: HEALTHY, QUARANTINED, ON_PROBATION, HELD, REMOVED or PARKED, as
--               rules/constants.py explains them; healthy, held: how many exits have these two
NO_INDEX, RECORD_SIZE, NONE = 4294967295, 136, {}
-- Little-endian, as most machines: no bytes need swapping.
ROSTER = '<I4I4I4'

-- An exit in `rests` and `uses`: highest byte first, so that equal scores are sorted by index.
function member_of(index)
  return pack('>I4', index)
end

function without_last_zeros(marks)
  local _, last = string.find(marks, '^.*[^%z]')
  return string.sub(marks, 1, last or 0)
end

local MORE, NEXT, STARTS_AT_ONCE = '<I4I4I4I4ddd', 'I4d', 100

local function read_flights(text, at, size)
  local flights, byte = {}, string.byte
  for i = at, at + size - 1, 5 do
    local low, middle, high, length, flight = byte(text, i, i + 4)
    local first = low + 256 * middle + 65536 * high
    for index = first, first + length - 1 do flights[index] = (flights[index] or 0) + flight end
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

-- Neighbours mostly have the same value: they are one entry, unless few of many exits are in use.
local function pack_flights(flights, size, few)
  if few * 16 < size then
    local text = ''
    for index, flight in pairs(flights) do text = text .. run_of(index, 1, flight) end
    return text
  end
  local runs, first, alike = {}
  for index = 0, size do
    if flights[index] ~= alike then
      if alike then runs[#runs + 1] = run_of(first, index - first, alike) end
      first, alike = index, flights[index]
    end
  end
  return table.concat(runs)
end

local function read_next_starts(text, at, total)
  local next_starts = {}
  while total > 0 do
    local part = math.min(total, STARTS_AT_ONCE)
    local list = {unpack_struct('<' .. string.rep(NEXT, part), text, at)}
    for i = 1, 2 * part, 2 do next_starts[list[i]] = list[i + 1] end
    at, total = list[2 * part + 1], total - part
  end
  return next_starts, at
end

local function pack_next_starts(roster)
  local list, last, parts = {}, 0, {}
  for index, start in pairs(roster.next_starts) do
    if start > now then
      list[last + 1], list[last + 2] = index, start
      last = last + 2
    end
  end
  for i = 1, last, 2 * STARTS_AT_ONCE do
    local to = math.min(i + 2 * STARTS_AT_ONCE - 1, last)
    parts[#parts + 1] = pack('<' .. string.rep(NEXT, (to - i + 1) / 2), unpack(list, i, to))
  end
  return table.concat(parts), last / 2
end

-- The second half, missing if all exits are healthy and due.
local function read_more(roster, text, at)
  local held, kept, next_starts, kept_since
  roster.healthy, held, kept, next_starts, kept_since, roster.starved_since, roster.first_rest, at = unpack_struct(MORE, text, at)
  if held > 0 then roster.held = held end
  if kept ~= NO_INDEX then roster.kept_index, roster.kept_since = kept, kept_since end
  if next_starts > 0 then roster.next_starts, at = read_next_starts(text, at, next_starts) end
  roster.marks = string.sub(text, at)
end

-- The roster at this position of the text. A table of eight fields is much smaller than one of nine: fields that most rosters do not
-- need are left out.
function read_roster(text, at)
  local size, next_index, bytes
  size, next_index, bytes, at = unpack_struct(ROSTER, text, at)
  local roster = {
    size = size, next_index = next_index, healthy = size, starved_since = 0, first_rest = NEVER,
    flights = read_flights(text, at, bytes), next_starts = NONE, marks = '',
  }
  if at + bytes <= #text then read_more(roster, text, at + bytes) end
  return roster
end

-- Gives the flights and the text after them. `few`: requests of the lane in flight. Size, next index and the length of the flights are
-- packed with the lane's record.
function pack_roster(roster, few)
  local flights = next(roster.flights) and pack_flights(roster.flights, roster.size, few) or ''
  -- Where all exits are healthy none rests.
  if roster.healthy == roster.size and roster.next_starts == NONE and roster.starved_since == 0 and not roster.kept_index then
    return flights, ''
  end
  local next_starts, late = pack_next_starts(roster)
  return flights, pack(MORE, roster.healthy, roster.held or 0, roster.kept_index or NO_INDEX, late, roster.kept_since or 0,
    roster.starved_since, roster.first_rest) .. next_starts .. roster.marks
end
