-- include: crawl turns exits rosters using judging lanes tasks bloom seen decimals retire admit outbox
-- settle: end leases. Each result is applied whole or, when its lease was lost, not at all.
--
-- ARGV[3]  number of kinds, the kinds (see admit); then number of results, and for each:
--          verb, key (8 bytes), token, lane's update: "0", or "1" and seven values (see update_lane), how the exit did: "" or
--          the report (see judging); then by verb
--   done     outcome; number of rejections, for each: reason, count; number of found tasks, the tasks (see admit)
--   found    number of found tasks, the tasks: a part of a long list, sent ahead; the lease stands
--   retry    reason, delay, "1" if free
--   dead     reason, detail
--   release
--   check    a result that cannot be written: only says whether its lease stands
-- Reply    {"ok", epoch, a letter per result: "s" stale, "a" applied or standing, {place, reason, …} refused, {place, …} merged,
--          {place, …} in the outbox, last number there}
local at = read_kinds(3)
local results = tonumber(ARGV[at])
at = at + 1

-- Where the parts of each result begin; they are checked before the first write.
local function read_result()
  -- All fields at once: a table that grows field by field costs three times as long.
  local result = {
    verb = ARGV[at], key = ARGV[at + 1], token = assert(tonumber(ARGV[at + 2])), update = nil, report = nil, rejected = nil,
    total = nil, found = nil,
  }
  at = at + 3
  if ARGV[at] == '1' then
    result.update = at + 1
    at = at + 7
  end
  at = at + 1
  if ARGV[at] ~= '' then
    assert(VERDICTS[string.byte(ARGV[at], 17) + 1])
    result.report = ARGV[at]
  end
  at = at + 1
  if result.verb == 'done' then
    result.rejected = at + 2
    local rejections = tonumber(ARGV[at + 1])
    for i = 1, rejections do assert(tonumber(ARGV[at + 1 + 2 * i])) end
    at = at + 2 + 2 * rejections
  end
  if result.verb == 'done' or result.verb == 'found' then
    result.total, result.found = tonumber(ARGV[at]), at + 1
    check_tasks(result.found, result.total)
    at = at + 1 + 3 * result.total
  elseif result.verb == 'retry' then
    result.reason, result.delay, result.is_free = ARGV[at], assert(tonumber(ARGV[at + 1])), ARGV[at + 2] == '1'
    at = at + 3
  elseif result.verb == 'dead' then
    result.reason, result.detail = ARGV[at], ARGV[at + 1]
    at = at + 2
  end
  return result
end

local read, keys = {}, {}
for i = 1, results do
  read[i] = read_result()
  keys[i] = read[i].key
end
local held_values = results > 0 and call('HMGET', P .. 'held', unpack(keys)) or {}

local outcomes, rejected, has_ended, finished = {}, {}, {}, {}

local function finish(result)
  count('done', 1)
  finished[#finished + 1] = result.key
  local first = result.rejected
  local outcome = ARGV[first - 2]
  outcomes[outcome] = (outcomes[outcome] or 0) + 1
  for i = first, first + 2 * tonumber(ARGV[first - 1]) - 1, 2 do
    rejected[ARGV[i]] = (rejected[ARGV[i]] or 0) + tonumber(ARGV[i + 1])
  end
  admit(result.found, result.total)
end

local function retry(lane, held, result)
  if not result.is_free and held.attempts >= max_attempts_of(held.task) then
    bury(held, result.reason, '')
    return
  end
  count('retried', 1)
  if result.is_free then
    held.attempts, held.free = held.attempts - 1, held.free + 1
  end
  held.reason = result.reason
  put_back(lane, held, result.delay)
end

local function apply(held, result)
  if result.verb == 'found' then
    admit(result.found, result.total)
    return
  elseif result.verb == 'check' then
    return
  end
  has_ended[result.key] = true
  local lane = need_lane(held.lane)
  if result.update then update_lane(lane, result.update) end
  end_lease(lane, held, result.report)
  if result.verb == 'done' then
    finish(result)
  elseif result.verb == 'retry' then
    retry(lane, held, result)
  elseif result.verb == 'dead' then
    bury(held, result.reason, result.detail)
  else
    held.attempts, held.reason = held.attempts - 1, ''
    put_back(lane, held, 0)
  end
end

-- How the exits of a lane did is read at once, if there are several.
local helds, place_used, places_used = {}, {}, {}
for i = 1, results do
  local held = held_values[i] and read_held(held_values[i])
  if held and held.place ~= NOWHERE then
    local name, place = held.lane, held.place
    local places = places_used[name]
    if places then
      places[#places + 1] = place
    elseif place_used[name] then
      places_used[name] = {place_used[name], place}
    else
      place_used[name] = place
    end
  end
  helds[i] = held
end
for name, places in pairs(places_used) do read_uses(need_lane(name), places) end

local fates = {}
for i = 1, results do
  local result = read[i]
  local held = not has_ended[result.key] and helds[i]
  local stands = held and held.token == result.token
  -- A question changes nothing.
  if ttl and (not stands or result.verb ~= 'check') then turn() end
  if stands then
    apply(held, result)
    fates[i] = 'a'
  else
    if result.verb ~= 'found' then count('stale', 1) end
    examined = examined + (result.total or 0)
    fates[i] = 's'
  end
end
local last_posted = save_outbox()
save_queues()
save_admitted()
if ttl then retire(finished) end
save_ended()
for name, amount in pairs(outcomes) do tally('outcomes', name, amount) end
for reason, amount in pairs(rejected) do
  if reason == 'duplicate' then count('duplicates', amount) else tally('rejected', reason, amount) end
end
save_lanes()
save_counts()
return {'ok', crawl.epoch, table.concat(fates), refused, merged, passed_on, last_posted}
