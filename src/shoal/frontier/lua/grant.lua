-- include: crawl
-- grant: share out what is left of `max_pages`. Kept by the first shard; what all shards were granted is never more than
-- the budget, and what a shard has accepted is never more than it was granted.
--
-- ARGV[3]  number of shards, then for each: generation, number of accepted tasks (see reclaim)
-- then     numbers of the shards that want to accept one task more, in the order in which they are served
-- Reply    {"ok", "1" when that was all, what each of them may keep beyond its wants; generation, allowance, … for each shard}
--
-- grants   shard → its generation and allowance
local AMPLE, SHARE, MOST = 64, 4, 10000
local shards, reports, granted = tonumber(ARGV[3]), {}, 0
for i = 1, shards do
  local generation, accepted = ARGV[2 * i + 2], tonumber(ARGV[2 * i + 3])
  local stored = call('HGET', P .. 'grants', i - 1)
  if stored then
    local known_generation, allowance = string.match(stored, '^(%d+) (%d+)$')
    if tonumber(known_generation) >= tonumber(generation) then generation, accepted = known_generation, tonumber(allowance) end
  end
  reports[i] = {generation = generation, allowance = accepted}
  granted = granted + accepted
end

local free, is_all, wanting = math.max(0, crawl.pages - granted), false, {}
for i = 2 * shards + 4, #ARGV do
  local report = reports[tonumber(ARGV[i]) + 1]
  if free > 0 then
    report.allowance, free = report.allowance + 1, free - 1
    wanting[#wanting + 1] = report
  else
    is_all = crawl.pages > 0
  end
end
-- While there is plenty, a shard that asked gets more than it needs, so that it need not ask for every task.
local kept = free >= AMPLE * shards and math.min(MOST, math.floor(free / (SHARE * shards))) or 0
for _, report in ipairs(wanting) do
  if not report.has_more then
    report.allowance, report.has_more = report.allowance + kept, true
  end
end
local reply = {'ok', is_all and '1' or '0', format('%.0f', kept)}
for i = 1, shards do
  local report = reports[i]
  call('HSET', P .. 'grants', i - 1, report.generation .. ' ' .. format('%.0f', report.allowance))
  reply[#reply + 1] = report.generation
  reply[#reply + 1] = format('%.0f', report.allowance)
end
return reply
