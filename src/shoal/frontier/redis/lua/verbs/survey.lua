-- needs: expiry presence upkeep ready
-- survey: the first half of a lease from several crawls or shards: reclaim expired leases, queue tasks that are due, and list the
-- lanes that may start and for how many tasks.
--
-- ARGV[3]  how many lanes at most
-- ARGV[4]  horizon in seconds
-- ARGV[5]  how many tasks at most of one lane
-- ARGV[6]  seconds a lease lasts
-- ARGV[7]  the kinds of the tasks (see asked_kinds)
-- A lane that other crawls hold back is not listed.
-- Reply    {"ok", epoch, ask again in seconds and the crawl's time (see ask_again), finished (see ending), "1" if the first lane's next
--          task is a suspect, in a shard the values of the limits (see limits_so_far); starts in seconds, age (8 bytes), lane, room,
--          "1" if it shares its host with other crawls, … for each lane}
local limit, horizon, limit_per_lane, kinds = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), asked_kinds(ARGV[7])
crawl.lease_seconds = tonumber(ARGV[6])
if ttl then expire_keys() end
if note_presence(tonumber(ARGV[6])) then bring_back_lanes() end
reclaim_expired()
wake_due()
save_lanes()
local limits = is_sharded and limits_so_far() or ''
if not is_sharded then stop_if_reached() end
pause_if_spent()
save_counts()
lanes, lane_list = {}, {}

local function begins_with_suspect(lane)
  local task = next_entries(lane, kinds, 1)[1]
  local tries = task and call('HGET', P .. 'tries', key_of(task))
  return tries and task_rules.is_suspect(losses_of(tries))
end

local ready, held = choose_lanes(kinds, limit, horizon)
note_wishes(held, false)
if crawl.has_looked then save_lanes() end
local finished = ending()
local reply = {'ok', crawl.epoch, ask_again(kinds), finished, ready[1] and begins_with_suspect(ready[1]) and '1' or '0', limits}
for _, lane in ipairs(ready) do
  reply[#reply + 1] = format('%.17g', math.max(lane.next_start, lane.exits_next) - now)
  reply[#reply + 1] = pack('>d', lane.age)
  reply[#reply + 1] = lane.name
  reply[#reply + 1] = format('%.0f', room_of(lane, kinds, limit_per_lane, horizon))
  reply[#reply + 1] = lane.sharing == APART and '0' or '1'
end
return reply
