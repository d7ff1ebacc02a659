-- include: crawl exits rosters
-- uses: what is known of the exits of some lanes.
--
-- ARGV[3…]  lanes that go via a pool
-- Reply     {"ok", now; lane, exit, how it did towards that lane (see rosters) or "", requests in flight, its record whatever the
--           lane (see exits) or "", …}
local reply = {'ok', format('%.17g', now)}

local function tell(lane, place, use, flight)
  local exit = name_at(roll_of(pool_name_of(lane)), place)
  for _, value in ipairs({lane, exit, use, flight, call('HGET', P .. 'exits', exit) or ''}) do reply[#reply + 1] = value end
end

for i = 3, #ARGV do
  local lane = ARGV[i]
  local text = call('HGET', P .. 'lanes', lane) or ''
  local flights = #text > RECORD_SIZE and read_roster(text, RECORD_SIZE + 1).flights or {}
  local page = call('HGETALL', P .. 'uses:' .. lane)
  for j = 1, #page, 2 do
    local place = unpack_struct('>I4', page[j])
    tell(lane, place, page[j + 1], flights[place] or 0)
    flights[place] = nil
  end
  for place, flight in pairs(flights) do tell(lane, place, '', flight) end
end
return reply
