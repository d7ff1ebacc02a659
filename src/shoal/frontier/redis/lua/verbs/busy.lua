-- needs: lanes other_lanes
-- busy: lanes with waiting tasks or requests in flight, most waiting first. A cancelled crawl has no waiting ones.
--
-- ARGV[3]  rank to begin with
-- ARGV[4]  limit
-- ARGV[5]  how many lanes to leave out first; in a cancelled crawl none is left out
-- ARGV[6]  a text that the lane's name must contain, or ""
-- Reply    {"ok", rank to continue with, "1" if the lanes are sorted (not in a cancelled crawl), how many are still to be left out,
--          "1" at the end; for each lane: lane, waiting, in flight, interval, cap, starts in, known, has rules ("1"), age
--          (8 bytes), all its exits rest ("1"), base interval, it waits for an exit ("1"), rests for, why, why its own pace,
--          "1" if it needs rules, {the same lane of another crawl (see of_others), …}}
local MAX_EXAMINED = 10000
local first, limit, skip, search = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
if is_cancelled then skip = 0 end
if search == '' then
  first, skip = first + skip, 0
end
local examined = search == '' and limit or MAX_EXAMINED
local members = call('ZRANGE', P .. 'busy', first, first + examined - 1)
local wanted, looked_at = {}, 0
while looked_at < #members and #wanted < limit do
  looked_at = looked_at + 1
  local name = string.sub(members[looked_at], 9)
  if search == '' or string.find(name, search, 1, true) then
    if skip > 0 then skip = skip - 1 else wanted[#wanted + 1] = members[looked_at] end
  end
end
local is_last = looked_at == #members and #members < examined

-- The lanes of other crawls with this name: last start, blocked until, interval, base interval, cap, in flight, opener, turn, until
-- when they want a start slot, until when their limits count (doubles, times from now on), and the crawl, named as in keys.
local function of_others(lane)
  local list = {}
  for i, other in ipairs(lane.sharing == SHARED and other_lanes.of(lane.name) or {}) do
    list[i] = pack('>dddddddddd', other.last_start - now, other.blocked_until - now, other.interval, other.base_interval, other.cap,
      other.in_flight, other.opener, other.turn, other.wants_until - now, other.heeded_until - now)
      .. other_lanes.crawl_name(other.prefix)
  end
  return list
end

local reply = {'ok', first + looked_at, is_cancelled and '0' or '1', skip, is_last and '1' or '0'}

local fields = {}
for i, member in ipairs(wanted) do
  fields[2 * i - 1], fields[2 * i] = 'r' .. string.sub(member, 9), 'p' .. string.sub(member, 9)
end
local whys = #fields > 0 and call('HMGET', P .. 'whys', unpack(fields)) or {}
for i, member in ipairs(wanted) do
  local lane = find_lane(string.sub(member, 9))
  if lane then
    local start = lane.exits_next < NEVER and math.max(lane.next_start, lane.exits_next) or lane.next_start
    for _, value in ipairs({
      lane.name, format('%.0f', is_cancelled and 0 or lane.waiting), format('%.0f', lane.in_flight),
      format('%.17g', lane.interval), format('%.0f', lane.cap), format('%.17g', math.max(0, start - now)),
      format('%.0f', lane.known), lane.rules_until > now and '1' or '0', string.sub(member, 1, 8),
      do_exits_rest(lane) and '1' or '0', format('%.17g', lane.base_interval),
      math.max(lane.next_start, now) < lane.exits_next and lane.exits_next < NEVER and '1' or '0',
      format('%.17g', math.max(0, lane.blocked_until - now)), lane_rules.shows_why(lane) and whys[2 * i - 1] or '',
      whys[2 * i] or '', lane_rules.needs_opening(lane) and '1' or '0', of_others(lane),
    }) do
      reply[#reply + 1] = value
    end
  end
end
return reply
