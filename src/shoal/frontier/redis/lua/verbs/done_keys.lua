-- needs: seen
-- done_keys: the keys of this shard whose tasks have ended or that are known without a task, a bounded number per call. In crawls
-- whose keys do not expire, the keys of tasks that have not ended are among them (see undone).
--
-- ARGV[3]  the number of the first set, "0" to begin
-- Reply    {"ok", number of the next set, "" at the end, {key in decimals, …}}
local MAX_SETS = 20
local first, found = tonumber(ARGV[3]), {}
local last = math.min(first + MAX_SETS, buckets)

local function note(name)
  for _, key in ipairs(call('SMEMBERS', name)) do found[#found + 1] = key end
end

for bucket = first, last - 1 do
  if not ttl then
    note(seen_prefix .. bucket)
  else
    local newest = generation + generations_due()
    for _, number in ipairs(kept_generations()) do
      if number > newest - KEPT_GENERATIONS then note(past_set(number, bucket)) end
    end
  end
end
return {'ok', last < buckets and format('%.0f', last) or '', found}
