-- needs: crawl host_names host_rules other_records
-- gives: other_lanes
-- lazy
-- Lanes of other crawls with the same name: read, and never written except for the mark `sharing`.
--
-- accounts  exit of an exclusive pool → the crawl, named as in keys, that held it last: among all crawls of the slot that share
--           hosts, one lease holds it. Exits are known by name
local SHARING_AT, HOLDER_AT = 97, 33
local mine = string.sub(P, #host_names.slot, -2)
local crawls, is_overdue = {}, {}
other_lanes = {}

-- The clock shift and the state of the crawl with this prefix.
local function crawl_of(prefix)
  if not crawls[prefix] then
    local fields = redis.pcall('HMGET', prefix .. 'crawl', 'clock_shift', 'state')
    crawls[prefix] = {shift = tonumber(fields[1] or nil) or 0, state = fields[2] or ''}
  end
  return crawls[prefix]
end

local function shift_of(prefix)
  return crawl_of(prefix).shift
end

function other_lanes.in_our_time(other, at)
  return host_rules.in_time_of(at, shift_of(other.prefix), crawl.shift)
end

local function read_lane(prefix, name)
  local other = records.read_lane(records.read_text('HGET', prefix .. 'lanes', name))
  if not other then return nil end
  other.prefix = prefix
  for _, field in ipairs({'last_start', 'blocked_until', 'rules_until', 'wants_until', 'heeded_until'}) do
    other[field] = other_lanes.in_our_time(other, other[field])
  end
  local state = crawl_of(prefix).state
  host_rules.lane_in_state(other, state)
  other.is_gone = state == 'deleting'
  return other
end

function other_lanes.of(name)
  local found = {}
  for _, prefix in ipairs(host_names.others(name)) do found[#found + 1] = read_lane(prefix, name) end
  return found
end

-- The name of the crawl with this prefix.
function other_lanes.crawl_name(prefix)
  return string.sub(prefix, #host_names.slot, -2)
end

-- Mark an ALONE lane of another crawl as SHARED.
function other_lanes.mark(other, name)
  if other.sharing ~= ALONE then return end
  other.sharing = SHARED
  call('HSET', other.prefix .. 'lanes', name,
    string.sub(other.value, 1, SHARING_AT - 1) .. pack('>d', SHARED) .. string.sub(other.value, SHARING_AT + 8))
end

-- Note this crawl if it has overdue leases; gives whether it has.
function other_lanes.note_overdue(prefix)
  if is_overdue[prefix] == nil then
    local latest = format('%.17g', wall + shift_of(prefix) - crawl.lease_seconds)
    local first = redis.pcall('ZRANGEBYSCORE', prefix .. 'leases', '-inf', latest, 'LIMIT', 0, 1)
    is_overdue[prefix] = first[1] ~= nil
    if first[1] then crawl.overdue = (crawl.overdue or '') .. '\n' .. other_lanes.crawl_name(prefix) end
  end
  return is_overdue[prefix]
end

-- The interval that the latest search of another crawl has learnt for this host; nil: none that is valid.
function other_lanes.learnt(name)
  local host, interval, ends = host_names.kept(name, wall), nil, now
  if host and host.learnt_until + crawl.shift > ends then interval, ends = host.learnt, host.learnt_until + crawl.shift end
  for _, prefix in ipairs(host_names.others(name)) do
    local theirs, at = records.learnt_of(prefix, name)
    at = theirs and host_rules.in_time_of(at, shift_of(prefix), crawl.shift)
    if theirs and at > ends then interval, ends = theirs, at end
  end
  return interval
end

-- The prefix of the other crawl that holds the exit; nil: none.
function other_lanes.holder(exit)
  local crawl_name = crawl.share and call('HGET', host_names.slot .. 'accounts', exit)
  if not crawl_name or crawl_name == mine then return nil end
  local prefix = string.sub(host_names.slot, 1, -2) .. crawl_name .. ':'
  local row = records.read_text('HGET', prefix .. 'exits', exit)
  local is_held = row and #row >= HOLDER_AT + 7 and unpack_struct('<d', row, HOLDER_AT) ~= 0
  return is_held and crawl_of(prefix).state ~= 'deleting' and prefix or nil
end

function other_lanes.hold(exit)
  if crawl.share then call('HSET', host_names.slot .. 'accounts', exit, mine) end
end

function other_lanes.let_go(exit)
  if crawl.share and call('HGET', host_names.slot .. 'accounts', exit) == mine then call('HDEL', host_names.slot .. 'accounts', exit) end
end
