-- needs: server clock_rules
-- gives: crawl is_cancelled is_sharded TASK_STATES counted count save_counts sum_of_counts tally note_move moves_so_far
-- gives: revive exact feeders_left feeders_over is_fed wall time_of_crawl kind_names is_kind count_kind
-- The crawl's record and its counters.
--
-- ARGV[2]  the server's run_id as the caller knows it; "": run even if the crawl was not repaired since a restart
--
-- lease_seconds: how long leases of this call last. has_looked: a lane of this call has read lanes of other crawls. overdue: the
-- crawls, each after a newline, with requests in flight whose leases expired at least that long ago.
--
-- The script ends here with {"none"} if there is no such crawl, and with {"repair"} if the crawl was not repaired since the server
-- restarted: nothing may change before that.
crawl = read_fields('crawl', 'state', 'feeding', 'interval', 'cap', 'needs_rules', 'pages', 'per_lane', 'per_shape',
  'epoch', 'run', 'dedup', 'dedup_ttl', 'buckets', 'filters', 'shards', 'shard', 'spent', 'max_cost', 'cost', 'clock_last', 'clock_shift', 'kinds',
  'ran', 'limits', 'keys', 'share', 'fastest')
if not crawl.state or crawl.state == 'deleting' then return {'none'} end
if ARGV[2] ~= '' and crawl.run ~= ARGV[2] then return {'repair'} end
crawl.feeding, crawl.needs_rules = crawl.feeding == '1', crawl.needs_rules == '1'
crawl.interval, crawl.cap = tonumber(crawl.interval), tonumber(crawl.cap)
crawl.pages, crawl.per_lane, crawl.per_shape = tonumber(crawl.pages), tonumber(crawl.per_lane), tonumber(crawl.per_shape)
crawl.ran, crawl.fastest = tonumber(crawl.ran) or 0, tonumber(crawl.fastest) or 0
crawl.max_cost, crawl.cost = tonumber(crawl.max_cost) or 0, tonumber(crawl.cost) or 0
-- From here on `now` is the crawl's own time, which steps of the clock do not change; `wall` is the time of day, for people.
local clock_shift, stored_shift = nil, tonumber(crawl.clock_shift) or 0
crawl.clock_last, wall = tonumber(crawl.clock_last) or 0, now
now, clock_shift = clock_rules.reckon(now, crawl.clock_last, stored_shift, expected)
if clock_shift ~= stored_shift and ARGV[2] ~= '' then call('HSET', P .. 'crawl', 'clock_shift', format('%.17g', clock_shift)) end
-- Its weight at shared hosts; nil: it shares none.
crawl.shift, crawl.share = clock_shift, tonumber(crawl.share or nil)
is_cancelled, is_sharded = crawl.state == 'cancelled', crawl.shards and true or false

-- The kinds of the crawl's tasks besides http, in order of arrival, and whether a name is one of them. Nil, as in most crawls, if all
-- tasks are of the kind http.
if crawl.kinds and crawl.kinds ~= '' then
  kind_names, is_kind = {}, {}
  for name in string.gmatch(crawl.kinds, '[^,]+') do
    kind_names[#kind_names + 1] = name
    is_kind[name] = true
  end
end

-- The crawl's time and its shift, as text for the caller.
function time_of_crawl()
  return format('%.17g %.17g', now, clock_shift)
end

-- The counters of tasks by state; their sum is the number of accepted tasks.
TASK_STATES = {'queued', 'delayed', 'leased', 'done', 'dead', 'cancelled'}
counted = {}

function count(name, amount)
  counted[name] = (counted[name] or 0) + amount
end

-- Add to the number of tasks of another kind than http that are queued, delayed or cancelled.
function count_kind(kind, amount)
  count('kind:' .. kind, amount)
end

function save_counts()
  for name, amount in pairs(counted) do
    if amount ~= 0 then call('HINCRBY', P .. 'count', name, format('%.0f', amount)) end
  end
end

-- The sum of these counters as stored.
function sum_of_counts(...)
  local total = 0
  for _, value in ipairs(call('HMGET', P .. 'count', ...)) do total = total + (tonumber(value) or 0) end
  return total
end

function tally(kind, name, amount)
  call('HINCRBY', P .. kind, name, format('%.0f', amount))
end

-- Count an event that gives a shard new work: a crawl is finished when all its shards were quiet at the same moment.
function note_move()
  if is_sharded then call('HINCRBY', P .. 'count', 'moves', 1) end
end

-- Contains the run of the server: a count that was lost with the server's last second could repeat.
function moves_so_far()
  return (call('HGET', P .. 'count', 'moves') or 0) .. ' ' .. crawl.run
end

-- A number as text without loss.
function exact(number)
  return format('%.17g', number)
end

-- How many feeders have not expired.
function feeders_left()
  return call('ZCOUNT', P .. 'feeders', '(' .. exact(now), '+inf')
end

-- The feeders that expire until then: those that only keep the crawl open (STAYER), or the others, which are lost.
function feeders_over(stayed, time)
  local found = {}
  for _, feeder in ipairs(call('ZRANGEBYSCORE', P .. 'feeders', '-inf', exact(time))) do
    if (string.sub(feeder, 1, #STAYER) == STAYER) == stayed then found[#found + 1] = feeder end
  end
  return found
end

-- Whether the crawl is fed. A crawl that was opened to be fed waits for its first feeder.
function is_fed()
  return crawl.feeding and (call('EXISTS', P .. 'feeders') == 0 or feeders_left() > 0)
end

-- New work has come: a finished crawl runs again.
function revive()
  note_move()
  if crawl.state == 'finished' then
    crawl.state = 'running'
    call('HSET', P .. 'crawl', 'state', 'running')
    call('HDEL', P .. 'crawl', 'finished')
    -- `ran` must not count the time before. Nothing is leased, so note_presence does not need the latest time.
    call('HSET', P .. 'crawl', 'clock_last', format('%.17g', now))
  end
end
