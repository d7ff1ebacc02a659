-- needs: lanes
-- busy: lanes with waiting tasks or requests in flight, most waiting first. A cancelled crawl has no waiting ones.
--
-- ARGV[3]  rank to begin with
-- ARGV[4]  limit
-- Reply    {"ok", number of lanes read, "1" if they come in order: those of a cancelled crawl do not; lane, waiting, in flight,
--          interval, cap, starts in, known, has rules ("1"), age (8 bytes), all its exits rest ("1"), base interval, it waits for
--          an exit ("1"), … for each}
local first, limit = tonumber(ARGV[3]), tonumber(ARGV[4])
local members = call('ZRANGE', P .. 'busy', first, first + limit - 1)
local reply = {'ok', #members, is_cancelled and '0' or '1'}
for _, member in ipairs(members) do
  local lane = find_lane(string.sub(member, 9))
  if lane then
    local start = lane.exits_next < NEVER and math.max(lane.next_start, lane.exits_next) or lane.next_start
    for _, value in ipairs({
      lane.name, format('%.0f', is_cancelled and 0 or lane.waiting), format('%.0f', lane.in_flight),
      format('%.17g', lane.interval), format('%.0f', lane.cap), format('%.17g', math.max(0, start - now)),
      format('%.0f', lane.known), lane.rules_until > now and '1' or '0', string.sub(member, 1, 8),
      do_exits_rest(lane) and '1' or '0', format('%.17g', lane.base_interval),
      math.max(lane.next_start, now) < lane.exits_next and lane.exits_next < NEVER and '1' or '0',
    }) do
      reply[#reply + 1] = value
    end
  end
end
return reply
