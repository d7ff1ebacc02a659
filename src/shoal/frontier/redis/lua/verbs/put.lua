-- needs: admit
-- put: store each task whose key is not known in this crawl and that fits the budgets. Idempotent.
-- With reasons: store the tasks as dead letters; the state of the crawl does not change.
--
-- ARGV[3]  number of rejections, then for each: reason, count
-- then     number of labels, the labels; the list of tasks (see admit)
-- then     number of reasons: none, or one for each task; the reasons
-- then     for a shard, after the caller has asked for allowance: generation, allowance, how much of it to keep, "1" if the budget
--          is used up (see grant)
-- Reply    {"keys"}: the crawl's keys were dropped; {"ok", epoch, new, duplicates, {index, reason, …} refused, {index, …} merged,
--          {index, …} without allowance}
if crawl.keys then return {'keys'} end
local FIRST_REJECTION = 4
local rejections = tonumber(ARGV[3])
local at = read_labels(FIRST_REJECTION + 2 * rejections)
local total, first_reason = check_tasks(at)
for i = 1, rejections do assert(tonumber(ARGV[FIRST_REJECTION + 2 * i - 1])) end
local reasons = tonumber(ARGV[first_reason])
first_reason = first_reason + 1
assert(reasons == 0 or reasons == total)
if ttl then expire_keys() end
if reasons > 0 then burial_reasons = {unpack(ARGV, first_reason, first_reason + reasons - 1)} end
local first_of_grant = first_reason + reasons
local grant, allowance, kept_allowance, is_last_grant = unpack(ARGV, first_of_grant, first_of_grant + 3)
local is_granted = grant and grant == (call('HGET', P .. 'count', 'generation') or '0')
if is_granted then
  allowed = math.max(allowed, tonumber(allowance))
  if is_last_grant == '1' then
    is_spent = true
    call('HSET', P .. 'crawl', 'spent', format('%.0f', crawl.pages))
  end
end
admit(at)
save_queues()
save_admitted()
for i = 1, rejections do
  local first = FIRST_REJECTION + 2 * (i - 1)
  count_rejected(ARGV[first], tonumber(ARGV[first + 1]))
end
save_lanes()
save_counts()
if is_granted then
  call('HSET', P .. 'count', 'allowed', format('%.0f', math.min(allowed, known + tonumber(kept_allowance))))
end
return {'ok', crawl.epoch, #admitted_list, #known_before, refused, merged, passed_on}
