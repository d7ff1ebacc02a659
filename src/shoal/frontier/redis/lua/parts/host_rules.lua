-- needs: server
-- gives: host_rules
-- lazy
-- The rules of hosts that crawls share. rules/hosts.py explains them; both must give the same answers. A lane of another crawl is a
-- table, with its times in the time of the reading crawl.
host_rules = {}

-- twin: rules/hosts.py first_sharing
function host_rules.first_sharing(name, is_apart)
  return (is_apart or string.find(name, STAGE, 1, true)) and APART or ALONE
end

-- twin: rules/hosts.py in_time_of
function host_rules.in_time_of(at, shift, own_shift)
  return shift == own_shift and at or at - shift + own_shift
end

local HAS_ENDED = {finished = true, cancelled = true, stopped = true}

-- Changes the lane.
-- twin: rules/hosts.py lane_in_state
function host_rules.lane_in_state(other, state)
  if state == 'deleting' then other.in_flight, other.opener = 0, 0 end
  if state == 'deleting' or HAS_ENDED[state] then other.wants_until, other.heeded_until = 0, 0 end
end

-- twin: rules/hosts.py is_heeded
function host_rules.is_heeded(other)
  return other.in_flight > 0 or other.heeded_until > now
end

local function is_far(other, interval)
  return other.last_start > now + (other.in_flight + 1) * interval + FAR_SECONDS
end

local function least(one, other)
  return one and math.min(one, other) or other
end

-- Gives a table with the fields of Limits; nil stands for None.
-- twin: rules/hosts.py limits_of
function host_rules.limits_of(interval, base_interval, cap, others, own_start)
  local limits = {in_flight = 0, not_before = 0, is_opening = false, least_turn = nil}
  local latest, own_interval = nil, interval
  for _, other in ipairs(others) do
    if host_rules.is_heeded(other) then
      interval, base_interval = math.max(interval, other.interval), math.max(base_interval, other.base_interval)
      if other.cap > 0 then cap = math.min(cap, other.cap) end
      latest = math.max(latest or other.turn, other.turn)
    end
    if other.wants_until > now then limits.least_turn = least(limits.least_turn, other.turn) end
    limits.in_flight = limits.in_flight + other.in_flight
    limits.is_opening = limits.is_opening or other.opener ~= 0
  end
  for _, other in ipairs(others) do
    limits.not_before = math.max(limits.not_before, other.blocked_until, is_far(other, interval) and 0 or other.last_start + interval)
  end
  if own_start ~= 0 and interval > own_interval then limits.not_before = math.max(limits.not_before, own_start + interval) end
  limits.interval, limits.base_interval, limits.cap = interval, base_interval, cap
  limits.first_turn = limits.least_turn or latest
  return limits
end

-- twin: rules/hosts.py matters
function host_rules.matters(other, interval)
  return host_rules.is_heeded(other) or other.opener ~= 0 or other.wants_until > now or other.blocked_until > now
    or (other.last_start + interval > now and not is_far(other, interval))
end

-- twin: rules/hosts.py turn_at_return
function host_rules.turn_at_return(turn, wants_until, first_turn)
  return (not first_turn or wants_until > now) and turn or math.max(turn, first_turn)
end

local function turns_ahead(weight, limits, horizon)
  return math.max(1, limits.interval > 0 and horizon / limits.interval or limits.cap) / math.max(1, weight)
end

-- twin: rules/hosts.py turn_owed
function host_rules.turn_owed(turn, weight, limits, horizon)
  return limits.least_turn and math.min(turn, limits.least_turn + turns_ahead(weight, limits, horizon) + 1 / weight) or turn
end

-- twin: rules/hosts.py turns_left
function host_rules.turns_left(turn, weight, limits, horizon, most)
  if not limits.least_turn then return most end
  local total, last = 0, limits.least_turn + turns_ahead(weight, limits, horizon)
  while total < most and turn < last do
    total, turn = total + 1, turn + 1 / weight
  end
  return total
end
