-- needs: lanes
-- walk: change lanes, a bounded number per call.
--
-- ARGV[3]  "resume": lanes with waiting tasks start at the given time at the earliest; "pace": lanes with the crawl's pace get the
--          new one; "pools": lanes that go via a pool get its new exits
-- ARGV[4]  cursor, "0" to begin
-- ARGV[5]  resume: the time; pace: the crawl's old interval
-- ARGV[6]  pace: the new interval
-- ARGV[7]  pace: the old cap
-- ARGV[8]  pace: the new cap
-- ARGV[9]  pace: the shortest interval that searches could reach before
-- ARGV[10] pace: the shortest interval that they may reach now
-- Reply    {"ok", next cursor, "0" at the end}
local how, cursor = ARGV[3], ARGV[4]
local max_lanes, MAX_USES = 200, 4000

-- A lane of a large pool takes long.
if how == 'pools' then
  for _, name in ipairs(call('HKEYS', P .. 'pools')) do
    max_lanes = math.max(1, math.min(max_lanes, math.floor(MAX_USES / math.max(1, pool_of(name).size))))
  end
end

local function take_over(lane)
  local pool = pool_of(lane.via)
  if pool.exists then
    local old = read_fields('pool:' .. pool.name, 'old_host_interval', 'old_host_cap')
    if old.old_host_interval then
      lane_rules.follow_pace(lane, tonumber(old.old_host_interval), tonumber(old.old_host_cap), pool.host_interval, pool.host_cap)
    end
  end
  if has_begun(lane) then review_roster(lane) end
end

local changes = {}

function changes.resume(lane)
  if lane.waiting > 0 then lane.next_start = math.max(lane.next_start, tonumber(ARGV[5])) end
end

function changes.pools(lane)
  if lane.via then take_over(lane) end
end

function changes.pace(lane)
  local old_interval, interval, old_cap, cap, old_fastest, fastest = unpack(ARGV, 5, 10)
  local is_region = lane.via and string.sub(lane.via, 1, #REGION) == REGION
  if (not lane.via or is_region) and not is_stage(lane.name) then
    lane_rules.follow_pace(lane, tonumber(old_interval), tonumber(old_cap), tonumber(interval), tonumber(cap))
    if tonumber(old_fastest) ~= tonumber(fastest) then lane_rules.stay_within(lane, tonumber(fastest)) end
  end
end

local next_cursor, page = unpack(call('HSCAN', P .. 'lanes', cursor, 'COUNT', max_lanes))
for i = 1, #page, 2 do changes[how](need_lane(page[i])) end
save_lanes()
return {'ok', next_cursor}
