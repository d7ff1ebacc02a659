-- needs: lanes other_lanes shared_exits
-- gives: hosts
-- lazy
-- Hosts that several crawls share: the limits that others put on a lane before it starts a request. An ALONE lane reads others only if
-- it needs rules.
hosts = {}

-- The kept state of the host, as one more lane.
local function kept_lane(lane)
  local host = host_names.kept(lane.name, wall)
  if not host then return nil end
  lane.kept_host = host
  return {
    last_start = host.last_start + crawl.shift, blocked_until = host.blocked_until + crawl.shift, interval = 0, base_interval = 0,
    cap = 0, in_flight = 0, opener = 0, turn = 0, wants_until = 0, heeded_until = 0,
  }
end

local function limits_of(lane, own_start)
  local seen = {unpack(lane.others)}
  seen[#seen + 1] = lane.kept
  local limits = host_rules.limits_of(lane.interval, lane.base_interval, lane.cap, seen, own_start)
  limits.seen = seen
  return limits
end

-- Set how the lane stands to the others: ALONE if none of them matters. The others become SHARED.
local function stand(lane, limits)
  lane.sharing = ALONE
  for _, other in ipairs(limits.seen) do
    if host_rules.matters(other, lane.interval) then lane.sharing = SHARED end
  end
  for _, other in ipairs(lane.others) do other_lanes.mark(other, lane.name) end
end

-- The limits of the lane, as host_rules.limits_of gives them; nil: its own. Called before it is changed or starts a request; a
-- request that has missed its slot may take it.
function hosts.limits(lane, has_missed)
  if lane.sharing ~= SHARED then return nil end
  if not lane.others then lane.others, lane.kept = other_lanes.of(lane.name), kept_lane(lane) end
  local limits = limits_of(lane, has_missed and 0 or lane.last_start)
  stand(lane, limits)
  return limits
end

-- The longest valid rules of another crawl's lane, or of the host's kept state.
local function best_rules(lane)
  local best, ends = nil, now
  for _, other in ipairs(lane.others) do
    if other.rules_until > ends then best, ends = other, other.rules_until end
  end
  local host = lane.kept_host
  if host and host.rules_until + crawl.shift > ends then return host.rules_until + crawl.shift, host.rules, host.delay, host.why end
  if best then return ends, records.rules_of(best.prefix, lane.name) end
end

-- Give a lane without valid rules the rules of another crawl, with their pace.
local function take_rules(lane)
  local ends, rules, delay, why = best_rules(lane)
  if not ends then return end
  if delay > lane.base_interval then
    lane_rules.update_pace(lane, math.max(lane.interval, delay), nil, delay)
    keep.why('p' .. lane.name, why)
  end
  keep.rules(lane, rules, delay, why)
  lane.rules_until, lane.version = ends, lane.version + 1
end

-- Read the other lanes for a lane that wants start slots, once per call.
function hosts.look(lane)
  local needs_rules = lane.sharing ~= APART and lane_rules.needs_opening(lane)
  if lane.limits or not (needs_rules or lane.sharing == SHARED) then return end
  lane.others, lane.kept = other_lanes.of(lane.name), kept_lane(lane)
  for _, other in ipairs(lane.others) do
    if (other.in_flight > 0 or other.opener ~= 0) and other_lanes.note_overdue(other.prefix) then lane.is_overdue = true end
  end
  if needs_rules then take_rules(lane) end
  local limits = limits_of(lane, lane.last_start)
  stand(lane, limits)
  if lane.via then shared_exits.heed(lane) end
  lane.turn = host_rules.turn_at_return(lane.turn, lane.wants_until, limits.first_turn)
  lane.limits, crawl.has_looked = limits, true
end

-- Whether other crawls keep the lane from starting in time. Its next start is then when it may start, or soon, to check again. If
-- leases are overdue it stays due: the caller reclaims them and asks again.
function hosts.hold_back(lane, horizon)
  local limits = lane.limits
  lane.turn = host_rules.turn_owed(lane.turn, crawl.share, limits, horizon)
  limits.turns = host_rules.turns_left(lane.turn, crawl.share, limits, horizon, lane.waiting)
  if (limits.is_opening and lane_rules.needs_opening(lane)) or lane.in_flight + limits.in_flight >= limits.cap or limits.turns == 0 then
    lane.next_start = math.max(lane.next_start, limits.not_before, lane.is_overdue and 0 or now + LOOK_AGAIN_SECONDS)
    return true
  end
  if limits.not_before <= now + horizon then return false end
  lane.next_start = math.max(lane.next_start, limits.not_before)
  return true
end
