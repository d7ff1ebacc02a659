-- needs: crawl exits roster_record
-- uses: the state of the exits of some lanes.
--
-- ARGV[3…]  lanes that go via a pool
-- Reply     {"ok", now; lane, exit, its use by that lane (see rosters) or "", requests in flight, its row for all lanes (see exits)
--           or "", …}
local reply = {'ok', format('%.17g', now)}

local function tell(lane, index, use, flight)
  local exit = name_at(pool_of(pool_name_of(lane)), index)
  for _, value in ipairs({lane, exit, use, flight, call('HGET', P .. 'exits', exit) or ''}) do reply[#reply + 1] = value end
end

for i = 3, #ARGV do
  local lane = ARGV[i]
  local text = call('HGET', P .. 'lanes', lane) or ''
  local flights = #text > RECORD_SIZE and read_roster(text, RECORD_SIZE + 1).flights or {}
  local page = call('HGETALL', P .. 'uses:' .. lane)
  for j = 1, #page, 2 do
    local index = unpack_struct('>I4', page[j])
    tell(lane, index, page[j + 1], flights[index] or 0)
    flights[index] = nil
  end
  for index, flight in pairs(flights) do tell(lane, index, '', flight) end
end
return reply
