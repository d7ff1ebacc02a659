-- needs: crawl key_names host_names
-- size: an estimate of the bytes of this shard, with its part of the names of shared hosts. The server measures a bounded number of
-- its keys; the rest is extrapolated.
--
-- Reply  {"ok", bytes}
local MAX_LANES, MAX_SETS = 20, 20

local function bytes_of(name)
  return call('MEMORY', 'USAGE', P .. name) or 0
end

local total, kinds = 0, kinds_of_record()
for _, name in ipairs(FIXED_NAMES) do
  -- The record has few fields, and one of them has most of its bytes, which a sample may miss.
  total = total + (name == 'crawl' and call('MEMORY', 'USAGE', P .. name, 'SAMPLES', 0) or bytes_of(name))
end
total = total + bytes_of('lanes')
for _, kind in ipairs(kinds) do total = total + bytes_of('ready:' .. kind) end
for _, name in ipairs(call('HKEYS', P .. 'pools')) do total = total + bytes_of('pool:' .. name) end

-- The keys of lanes besides their queues.
local _, page = unpack(call('HSCAN', P .. 'lanes', 0, 'COUNT', MAX_LANES))
local sampled, beside, names = math.min(MAX_LANES, #page / 2), 0, 0
local looked_at = {}
for i = 1, sampled do
  local lane = page[2 * i - 1]
  looked_at[lane] = true
  for _, name in ipairs({'shape:', 'uses:', 'rests:'}) do beside = beside + bytes_of(name .. lane) end
  if crawl.share then
    local _, crawls = string.gsub(call('HGET', host_names.slot .. 'hosts', lane) or '', '\n', '')
    names = names + crawls
  end
end
if sampled > 0 then total = total + beside * call('HLEN', P .. 'lanes') / sampled end

-- Queues by their number of tasks: some have most of the tasks.
for _, member in ipairs(call('ZRANGE', P .. 'busy', 0, MAX_LANES - 1)) do looked_at[string.sub(member, 9)] = true end
local in_queues, measured = 0, 0
for lane in pairs(looked_at) do
  local queues = {'q:' .. lane}
  for _, kind in ipairs(kinds) do queues[#queues + 1] = 'kq:' .. kind .. ':' .. lane end
  for _, queue in ipairs(queues) do
    local tasks = call('ZCARD', P .. queue)
    if tasks > 0 then in_queues, measured = in_queues + tasks, measured + bytes_of(queue) end
  end
end
local waiting = sum_of_counts('queued', 'cancelled') - (is_cancelled and call('ZCARD', P .. 'later') or 0)
if in_queues > 0 then total = total + measured * math.max(1, waiting / in_queues) end

-- A sample of the sets of keys.
local kept = read_fields('turns', 'swept', 'generation')
local buckets = tonumber(crawl.buckets) or 0
local step = math.max(1, math.floor(buckets / MAX_SETS))
local sets, measured_sets = 0, 0
for bucket = 0, buckets - 1, step do
  sets, measured_sets = sets + 1, measured_sets + bytes_of('seen:' .. bucket)
  for number = tonumber(kept.swept) or 0, tonumber(kept.generation) or -1 do
    measured_sets = measured_sets + bytes_of('past:' .. number .. ':' .. bucket)
  end
end
if sets > 0 then total = total + measured_sets * buckets / sets end
for number = 1, tonumber(crawl.filters) or 1 do total = total + bytes_of('bloom:' .. number) end
-- Its share of the names of hosts, assuming that all hosts have as many crawls as its own.
local hosts = names > 0 and call('HLEN', host_names.slot .. 'hosts') or 0
if hosts > 0 then
  local part = call('HLEN', P .. 'lanes') * sampled / (hosts * names)
  total = total + (call('MEMORY', 'USAGE', host_names.slot .. 'hosts') or 0) * math.min(1, part)
end
return {'ok', format('%.0f', total)}
