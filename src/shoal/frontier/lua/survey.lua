-- include: crawl turns lanes tasks lending
-- survey: the first half of a lease from several crawls: take back, wake, and say which lanes could lend how much.
--
-- ARGV[3]  limit
-- ARGV[4]  horizon in seconds
-- Reply    {"ok", next start, age (8 bytes), lane, room, … for each lane}
local limit, horizon = tonumber(ARGV[3]), tonumber(ARGV[4])
turn()
take_back()
wake_due()
save_lanes()
save_counts()
lanes, lane_list = {}, {}

local reply = {'ok'}
for _, lane in ipairs(ready_lanes(limit, horizon)) do
  reply[#reply + 1] = format('%.17g', lane.next)
  reply[#reply + 1] = pack('>d', lane.age)
  reply[#reply + 1] = lane.name
  reply[#reply + 1] = format('%.0f', room_of(lane, limit, horizon))
end
return reply
