-- needs: server
-- gives: lane_rules
-- The rules of lanes: when a lane may start. rules/lanes.py explains them; both must give the same answers.
lane_rules = {}

-- Gives interval and cap.
-- twin: rules/lanes.py first_pace
function lane_rules.first_pace(interval, cap, pool)
  if pool and pool.exists and string.sub(pool.name, 1, #REGION) ~= REGION then return pool.host_interval, pool.host_cap end
  return interval, cap
end

-- Changes the lane's last and next start. `longest`: the longest interval of all crawls; nil: the lane's own.
-- twin: rules/lanes.py take_slot
function lane_rules.take_slot(lane, at, longest)
  local interval = longest or lane.interval
  local last_start = interval > 0 and at or math.min(at, math.max(now, lane.next_start))
  lane.last_start, lane.next_start = last_start, math.max(last_start + interval, lane.blocked_until)
end

-- twin: rules/lanes.py reserved_start
function lane_rules.reserved_start(lane, missed)
  if missed > 0 and math.abs(now - missed - lane.last_start) < lane.interval / 2 then
    return math.max(now, lane.blocked_until)
  end
  return math.max(now, lane.next_start)
end

-- twin: rules/lanes.py next_start_at
function lane_rules.next_start_at(lane, interval)
  return math.max(lane.last_start + interval, lane.blocked_until, math.min(lane.next_start, now))
end

-- twin: rules/lanes.py is_of_former_wave
function lane_rules.is_of_former_wave(lane, started)
  return started and started < lane.blocked_until
end

local function counts(lane, interval, if_interval, started, is_former)
  if not if_interval then return true end
  if not started then return math.abs(if_interval - lane.interval) <= SAME_INTERVAL end
  return interval > lane.interval and not is_former
end

-- Changes the lane's pace. Values that are nil stay.
-- twin: rules/lanes.py update_pace
function lane_rules.update_pace(lane, interval, if_interval, base_interval, cap, rest_seconds, started)
  local is_former = lane_rules.is_of_former_wave(lane, started)
  if interval and counts(lane, interval, if_interval, started, is_former) then
    lane.interval = interval
    lane.next_start = lane_rules.next_start_at(lane, interval)
    if started then lane.blocked_until = math.max(lane.blocked_until, now) end
  end
  if base_interval then lane.base_interval = base_interval end
  if cap then lane.cap = cap end
  if rest_seconds and not (is_former and rest_seconds <= SHORT_REST) then
    lane.blocked_until = math.max(lane.blocked_until, now + rest_seconds)
    lane.next_start = math.max(lane.next_start, lane.blocked_until)
  end
end

-- twin: rules/lanes.py takes_why
function lane_rules.takes_why(lane, blocked_until, interval, is_own_pace)
  if lane.blocked_until > math.max(blocked_until, now) then return true end
  if is_own_pace or blocked_until > now then return false end
  return lane.interval > interval or (lane.interval ~= interval and lane.interval < lane.base_interval)
end

-- twin: rules/lanes.py shows_why
function lane_rules.shows_why(lane)
  return lane.blocked_until > now or lane.interval ~= lane.base_interval
end

-- Changes the lane's pace.
-- twin: rules/lanes.py follow_pace
function lane_rules.follow_pace(lane, old_interval, old_cap, interval, cap)
  if interval ~= old_interval and lane.base_interval == old_interval then
    if lane.interval == lane.base_interval then lane.interval = interval end
    lane.base_interval = interval
    lane.next_start = lane_rules.next_start_at(lane, interval)
  end
  if lane.cap == old_cap then lane.cap = cap end
end

-- Slow the lane down to the fastest pace that searches may reach now; 0: to its own pace. Changes the lane's pace.
function lane_rules.stay_within(lane, fastest)
  local least = fastest > 0 and math.min(fastest, lane.base_interval) or lane.base_interval
  if lane.interval >= least then return end
  lane.interval, lane.next_start = least, math.max(lane.next_start, lane.last_start + least)
end

-- twin: rules/lanes.py possible_start
function lane_rules.possible_start(lane)
  return math.max(now, lane.blocked_until) + (lane.in_flight + 1) * math.max(lane.interval, lane.base_interval) + FAR_SECONDS
end

-- Changes the lane's last and next start.
-- twin: rules/lanes.py bring_back
function lane_rules.bring_back(lane)
  local latest = lane_rules.possible_start(lane)
  if lane.next_start <= latest then return end
  if lane.last_start > latest then lane.last_start = now end
  lane.next_start = math.max(now, lane.last_start + lane.interval, lane.blocked_until)
end

-- twin: rules/lanes.py starts_within
function lane_rules.starts_within(most, lane, horizon)
  if lane.interval == 0 then return most end
  local start, latest = math.max(now, lane.next_start), now + horizon
  for total = 1, most - 1 do
    start = start + lane.interval
    if start > latest then return total end
  end
  return most
end

-- twin: rules/lanes.py ask_again_in
function lane_rules.ask_again_in(times)
  local soonest = now + MAX_ASK_AGAIN
  for i = 1, #times do soonest = math.min(soonest, times[i]) end
  return math.max(MIN_ASK_AGAIN, soonest - now)
end

-- Gives until when the lane wants a start slot, and until when its limits count.
-- twin: rules/hosts.py wants
function lane_rules.wants(waiting, due, is_served)
  local later = math.max(now, due)
  return waiting > 0 and not is_served and later + WANTS_SECONDS or 0, later + HEEDED_SECONDS
end
