-- needs: server
-- gives: records
-- lazy
-- Reading lanes of other crawls. Crawls whose keys cannot be read are left out: their own workers set aside damaged records.
--
-- shared  what other crawls take over: "d" and lane → the pace that its rules ask for (double) and why; "l" and lane → the interval that
--         a search has learnt, and its expiry (doubles)
local SIZE = 136
local DOUBLE, LEARNT = 8, '>dd'
records = {}

-- Gives nil also for a key of another type.
function records.read_text(command, ...)
  local value = redis.pcall(command, ...)
  return type(value) == 'string' and value or nil
end

-- Gives nil if it is no valid record.
function records.read_lane(value)
  if not value or #value < SIZE then return nil end
  local lane, _ = {value = value}, nil
  _, _, lane.last_start, lane.blocked_until, lane.interval, lane.base_interval, lane.cap, lane.in_flight, _, lane.opener,
    lane.rules_until, _, lane.sharing, lane.turn, lane.wants_until, lane.heeded_until = unpack_struct(LANE_RECORD, value)
  if lane.sharing == APART or lane.blocked_until >= LATEST_TIME or lane.last_start >= LATEST_TIME then return nil end
  return lane
end

-- Gives the lane's rules, the pace that they ask for, and why.
function records.rules_of(prefix, name)
  local delay = records.read_text('HGET', prefix .. 'shared', 'd' .. name)
  if delay and #delay < DOUBLE then delay = nil end
  return records.read_text('HGET', prefix .. 'rules', name) or '', delay and unpack_struct('>d', delay) or 0,
    delay and string.sub(delay, DOUBLE + 1) or ''
end

-- Gives the interval that searches have learnt for the lane, and its expiry; nil: none.
function records.learnt_of(prefix, name)
  local value = records.read_text('HGET', prefix .. 'shared', 'l' .. name)
  if value and #value == 2 * DOUBLE then return unpack_struct(LEARNT, value) end
end

-- A lane of a crawl that is being deleted, with times of the server's clock.
function records.read_for_others(prefix, name, value, shift)
  local lane = records.read_lane(value)
  if not lane then return nil end
  lane.rules, lane.delay, lane.why = records.rules_of(prefix, name)
  local learnt, ends = records.learnt_of(prefix, name)
  lane.learnt, lane.learnt_until = learnt or 0, (ends or 0) - shift
  for _, field in ipairs({'last_start', 'blocked_until', 'rules_until'}) do lane[field] = lane[field] - shift end
  return lane
end
