-- include: crawl turns exits rosters using judging lanes tasks bloom seen admit
-- put: store each task whose key is not known in this crawl and that fits the budgets. Idempotent.
-- With reasons: store them as dead letters, and leave the state of the crawl.
--
-- ARGV[3]  number of rejections, then for each: reason, count
-- then     number of kinds, the kinds; number of tasks, the tasks (see admit)
-- then     number of reasons: none, or one for each task; the reasons
-- then     of a shard, when the caller asked for allowance: generation, allowance, how much of it to keep, "1" if there
--          will be no more (see grant)
-- Reply    {"ok", epoch, new, duplicates, {place, reason, …} refused, {place, …} merged, {place, …} without allowance}
local rejections = tonumber(ARGV[3])
local at = 4 + 2 * rejections
at = read_kinds(at)
check_tasks(at + 1, tonumber(ARGV[at]))
for i = 1, rejections do assert(tonumber(ARGV[2 * i + 3])) end
if ttl then turn() end
local grant = at + 1 + 3 * tonumber(ARGV[at])
local reasons = tonumber(ARGV[grant])
if reasons > 0 then burial_reasons = {unpack(ARGV, grant + 1, grant + reasons)} end
grant = grant + 1 + reasons
local is_granted = ARGV[grant] and ARGV[grant] == (call('HGET', P .. 'count', 'generation') or '0')
if is_granted then
  allowed = math.max(allowed, tonumber(ARGV[grant + 1]))
  if ARGV[grant + 3] == '1' then
    is_spent = true
    call('HSET', P .. 'crawl', 'spent', format('%.0f', crawl.pages))
  end
end
admit(at + 1, tonumber(ARGV[at]))
save_queues()
save_admitted()
for i = 1, rejections do
  local reason, amount = ARGV[2 * i + 2], tonumber(ARGV[2 * i + 3])
  if reason == 'duplicate' then count('duplicates', amount) else tally('rejected', reason, amount) end
end
save_lanes()
save_counts()
if is_granted then
  call('HSET', P .. 'count', 'allowed', format('%.0f', math.min(allowed, known + tonumber(ARGV[grant + 2]))))
end
return {'ok', crawl.epoch, #admitted_list, duplicates, refused, merged, passed_on}
