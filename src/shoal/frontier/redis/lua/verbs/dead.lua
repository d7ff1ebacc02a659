-- needs: tasks retire
-- dead: list, count, requeue or drop dead letters that match, newest first, a bounded number per call.
-- Requeue leaves out tasks that allow no attempt.
--
-- ARGV[3]  "list", "count", "requeue" or "drop"
-- ARGV[4]  how many letters, newest first, to skip: letters that were examined before and are still there
-- ARGV[5]  limit of matching letters, or, when counting, of examined letters
-- ARGV[6]  "=" and the lane, or ""
-- ARGV[7]  "=" and the beginning of the reason, or ""
-- ARGV[8]  earliest time of death, or "-inf"
-- ARGV[9]  key (8 bytes), or ""
-- ARGV[10] latest time of death, or "+inf"
-- Reply    {"keys"}: there are letters to requeue, but the crawl's keys were dropped;
--          {"ok", how many to skip next time, "1" at the end, number of matches, the letters when listing; when counting, the
--          number of letters in that time}
local verb, skip, limit = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local is_look = verb == 'list' or verb == 'count'
local wanted_lane, wanted_reason, since, wanted_key, until_then = ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10]

-- Reading a letter takes a tenth of the time of changing one, so that people wait for fewer round trips.
local max_examined = is_look and 2000 or 500
if verb == 'count' or (verb == 'list' and wanted_lane == '' and wanted_reason == '') then
  max_examined = math.min(max_examined, limit)
end
local lane_beginning, reason_beginning = string.sub(wanted_lane, 2), string.sub(wanted_reason, 2)

-- Compares only the first fields of the letter: its detail may be long.
local function matches(value)
  local died, lane, reason, at = first_of_dead(value)
  return (wanted_lane == '' or (lane == #lane_beginning and string.sub(value, at, at + lane - 1) == lane_beginning))
    and (wanted_reason == '' or (reason >= #reason_beginning
      and string.sub(value, at + lane, at + lane + #reason_beginning - 1) == reason_beginning))
    and (since == '-inf' or died >= tonumber(since))
    and (until_then == '+inf' or died <= tonumber(until_then))
end

local function letters_there()
  return wanted_key ~= '' and 1 or call('ZCOUNT', P .. 'graves', since, until_then)
end

local keys = {}
if wanted_key ~= '' then
  if skip == 0 then keys = {wanted_key} end
else
  for i, grave in ipairs(call('ZREVRANGEBYSCORE', P .. 'graves', until_then, since, 'LIMIT', skip, max_examined)) do
    keys[i] = string.sub(grave, 5)
  end
end
local values = #keys > 0 and call('HMGET', P .. 'dead', unpack(keys)) or {}
local found, looked_at = {}, 0
while looked_at < #keys and (verb == 'count' or #found < limit) do
  looked_at = looked_at + 1
  local value = values[looked_at]
  if value and matches(value) then
    local letter = is_look and value or read_dead(value)
    if verb ~= 'requeue' or max_attempts_of(letter.task) > 0 then
      if not is_look then letter.key = keys[looked_at] end
      found[#found + 1] = letter
    end
  end
end
local is_last = looked_at == #keys and (wanted_key ~= '' or #keys < max_examined)
if is_look then
  return {'ok', skip + looked_at, is_last and '1' or '0', #found, verb == 'list' and found or letters_there()}
end

if verb == 'requeue' and #found > 0 and crawl.keys then return {'keys'} end
if verb == 'requeue' then
  for _, letter in ipairs(found) do
    wait(need_lane(letter.lane), letter.order, letter.task, 0, kind_names and kind_of(letter.task))
  end
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
