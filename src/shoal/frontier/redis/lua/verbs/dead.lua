-- needs: tasks retire
-- dead: list, requeue or drop dead letters that match, newest first, a bounded number per call.
-- Requeue passes over tasks that allow no attempt.
--
-- ARGV[3]  "list", "requeue" or "drop"
-- ARGV[4]  how many letters, newest first, to skip: letters that were looked at before and are still there
-- ARGV[5]  limit
-- ARGV[6]  "=" and the lane, or ""
-- ARGV[7]  "=" and the beginning of the reason, or ""
-- ARGV[8]  earliest time of death, or "-inf"
-- ARGV[9]  key (8 bytes), or ""
-- ARGV[10] latest time of death, or "+inf"
-- Reply    {"ok", how many to skip next time, "1" when nothing is left to look at, number found, letters when listing}
local MAX_EXAMINED = 500
local verb, skip, limit = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local wanted_lane, wanted_reason, since, wanted_key, until_then = ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10]

local function matches(letter)
  return (wanted_lane == '' or string.sub(wanted_lane, 2) == letter.lane)
    and (wanted_reason == '' or string.sub(letter.reason, 1, #wanted_reason - 1) == string.sub(wanted_reason, 2))
    and (since == '-inf' or letter.at >= tonumber(since))
    and (until_then == '+inf' or letter.at <= tonumber(until_then))
    and (verb ~= 'requeue' or max_attempts_of(letter.task) > 0)
end

local keys = {}
if wanted_key ~= '' then
  if skip == 0 then keys = {wanted_key} end
else
  for i, grave in ipairs(call('ZREVRANGEBYSCORE', P .. 'graves', until_then, since, 'LIMIT', skip, MAX_EXAMINED)) do
    keys[i] = string.sub(grave, 5)
  end
end
local values = #keys > 0 and call('HMGET', P .. 'dead', unpack(keys)) or {}
local found, listed, looked_at = {}, {}, 0
while looked_at < #keys and #found < limit do
  looked_at = looked_at + 1
  local letter = values[looked_at] and read_dead(values[looked_at])
  if letter and matches(letter) then
    letter.key = keys[looked_at]
    found[#found + 1] = letter
    if verb == 'list' then listed[#listed + 1] = values[looked_at] end
  end
end
local is_last = looked_at == #keys and (wanted_key ~= '' or #keys < MAX_EXAMINED)
if verb == 'list' then
  return {'ok', skip + looked_at, is_last and '1' or '0', #found, listed}
end

if verb == 'requeue' then
  for _, letter in ipairs(found) do wait(need_lane(letter.lane), letter.order, letter.task, 0) end
  save_queues()
  for _, letter in ipairs(found) do
    local losses = task_rules.losses_of_requeued(letter.reason)
    if losses > 0 then save_tries(letter.key, 0, losses, 0, '') end
  end
  if #found > 0 then revive() end
end
if verb == 'drop' and ttl then
  local dropped = {}
  for i, letter in ipairs(found) do dropped[i] = letter.key end
  expire_keys()
  retire(dropped)
end
for _, letter in ipairs(found) do
  if verb == 'requeue' then unbury(letter.key, letter) else drop(letter.key, letter) end
end
save_lanes()
save_counts()
return {'ok', skip + looked_at - #found, is_last and '1' or '0', #found, {}}
