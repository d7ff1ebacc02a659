-- needs: crawl
-- grant: share out the rest of `max_pages`. Kept by the first shard; all grants together never exceed the budget, and a shard never
-- accepts more than its grant.
--
-- ARGV[3]  number of shards, then for each: generation of its grants, number of accepted tasks (see reclaim)
-- then     for each task to accept, the number of its shard, in the order in which they are served
-- Reply    {"ok", number of tasks that were granted, how much a shard may keep beyond them; generation, allowance, … for each
--          shard}
--
-- grants   shard → its generation and allowance
local AMPLE, SHARE, MOST, FIRST = 64, 4, 10000, 4
local shards, reports, granted = tonumber(ARGV[3]), {}, 0
for i = 1, shards do
  local at = FIRST + 2 * (i - 1)
  local generation, accepted = ARGV[at], tonumber(ARGV[at + 1])
  local stored = call('HGET', P .. 'grants', i - 1)
  if stored then
    local known_generation, allowance = string.match(stored, '^(%d+) (%d+)$')
    if tonumber(known_generation) >= tonumber(generation) then generation, accepted = known_generation, tonumber(allowance) end
  end
  reports[i] = {generation = generation, allowance = accepted}
  granted = granted + accepted
end

local first_want = FIRST + 2 * shards
local wants = #ARGV - first_want + 1
local free, wanting = crawl.pages > 0 and math.max(0, crawl.pages - granted) or wants, {}
local served = math.min(free, wants)
for i = 1, served do
  local report = reports[tonumber(ARGV[first_want + i - 1]) + 1]
  report.allowance = report.allowance + 1
  wanting[i] = report
end
free = free - served
-- While much is left, a shard that asked gets more than it needs, so that it need not ask for every task.
local kept = free >= AMPLE * shards and math.min(MOST, math.floor(free / (SHARE * shards))) or 0
for _, report in ipairs(wanting) do
  if not report.has_more then
    report.allowance, report.has_more = report.allowance + kept, true
  end
end
local reply = {'ok', served, format('%.0f', kept)}
for i = 1, shards do
  local report = reports[i]
  call('HSET', P .. 'grants', i - 1, report.generation .. ' ' .. format('%.0f', report.allowance))
  reply[#reply + 1] = report.generation
  reply[#reply + 1] = format('%.0f', report.allowance)
end
return reply
