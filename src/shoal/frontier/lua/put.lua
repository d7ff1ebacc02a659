-- include: crawl turns lanes tasks bloom seen admit
-- put: store each task whose key is not known in this crawl and that fits the budgets. Idempotent.
--
-- ARGV[3]  number of rejections, then for each: reason, count
-- then     number of kinds, the kinds; number of tasks, the tasks (see admit)
-- Reply    {"ok", epoch, new, duplicates, {place, reason, …} refused, {place, …} merged}
local rejections = tonumber(ARGV[3])
local at = 4 + 2 * rejections
at = read_kinds(at)
check_tasks(at + 1, tonumber(ARGV[at]))
for i = 1, rejections do assert(tonumber(ARGV[2 * i + 3])) end
turn()
admit(at + 1, tonumber(ARGV[at]))
save_queues()
save_admitted()
for i = 1, rejections do
  local reason, amount = ARGV[2 * i + 2], tonumber(ARGV[2 * i + 3])
  if reason == 'duplicate' then count('duplicates', amount) else tally('rejected', reason, amount) end
end
save_lanes()
save_counts()
return {'ok', crawl.epoch, #admitted_list, duplicates, refused, merged}
