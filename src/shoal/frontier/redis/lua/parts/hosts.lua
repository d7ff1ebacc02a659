-- needs: lanes other_lanes shared_exits
-- gives: hosts
-- lazy
-- Hosts that several crawls share: what the others leave to a lane, before it starts a request. A lane that is alone has to look only
-- when it needs rules.
hosts = {}

-- What was kept of the host, as if it were one more lane.
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

-- How the lane stands to the others from here on: alone, if none of them matters. They look before they do anything.
local function stand(lane, limits)
  lane.sharing = ALONE
  for _, other in ipairs(limits.seen) do
    if host_rules.matters(other, lane.interval) then lane.sharing = SHARED end
  end
  for _, other in ipairs(lane.others) do other_lanes.mark(other, lane.name) end
end

-- The limits that hold for the lane, as host_rules.limits_of gives them; nil: its own. It is about to be changed, or to start a request;
-- one that has missed its slot may have it.
function hosts.limits(lane, has_missed)
  if lane.sharing ~= SHARED then return nil end
  if not lane.others then lane.others, lane.kept = other_lanes.of(lane.name), kept_lane(lane) end
  local limits = limits_of(lane, has_missed and 0 or lane.last_start)
  stand(lane, limits)
  return limits
end

-- The rules of another crawl's lane that are valid longest; those of the kept host, if they are.
local function best_rules(lane)
  local best, ends = nil, now
  for _, other in ipairs(lane.others) do
    if other.rules_until > ends then best, ends = other, other.rules_until end
  end
  local host = lane.kept_host
  if host and host.rules_until + crawl.shift > ends then return host.rules_until + crawl.shift, host.rules, host.delay, host.why end
  if best then return ends, records.rules_of(best.prefix, lane.name) end
end

-- A lane without valid rules takes those of another crawl, and is as slow as they ask for.
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

-- The lane asks for start slots: it looks at the others, once in a call.
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

-- Whether other crawls let the lane, which has looked, start nothing in time. It then waits anew: until it may, or to look again. It
-- stays due where leases are overdue: the caller has them reclaimed and asks again.
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
