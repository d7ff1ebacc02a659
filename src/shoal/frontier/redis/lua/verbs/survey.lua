-- needs: expiry upkeep ready
-- survey: the first half of a lease from several crawls or shards: reclaim expired leases, wake tasks that are due, and say which
-- lanes could lend how much.
--
-- ARGV[3]  how many lanes at most
-- ARGV[4]  horizon in seconds
-- ARGV[5]  how many tasks at most of one lane
-- Reply    {"ok", epoch, ask again in seconds, finished (see ending); next start, age (8 bytes), lane, room, … for each lane}
local limit, horizon, limit_per_lane = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
if ttl then expire_keys() end
reclaim_expired()
wake_due()
save_lanes()
pause_if_spent()
save_counts()
lanes, lane_list = {}, {}

local ready = ready_lanes(limit, horizon)
local finished = ending()
local reply = {'ok', crawl.epoch, ask_again(), finished}
for _, lane in ipairs(ready) do
  reply[#reply + 1] = format('%.17g', math.max(lane.next_start, lane.exits_next))
  reply[#reply + 1] = pack('>d', lane.age)
  reply[#reply + 1] = lane.name
  reply[#reply + 1] = format('%.0f', room_of(lane, limit_per_lane, horizon))
end
return reply
