-- needs: server clock_rules
-- gives: crawl is_cancelled is_sharded TASK_STATES counted count save_counts sum_of_counts tally note_move moves_so_far
-- gives: revive exact feeders_left feeders_over is_fed wall time_of_crawl kind_names is_kind count_kind
-- The crawl's record and its counters.
--
-- ARGV[2]  the server's run_id as the caller knows it; "": run even if the crawl was not checked since a restart
--
-- lease_seconds: how long leases of this call last. has_looked: a lane of this call has looked at those of other crawls. overdue: the
-- crawls, each behind a newline, that have requests in flight though their leases have been over for so long.
--
-- The script ends here with {"none"} when there is no such crawl, and with {"repair"} when the server restarted and the crawl
-- was not checked since: nothing may change before that.
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
-- From here on `now` is the crawl's own time, which nobody can step; `wall` is the time of day, for people.
local clock_shift, stored_shift = nil, tonumber(crawl.clock_shift) or 0
crawl.clock_last, wall = tonumber(crawl.clock_last) or 0, now
now, clock_shift = clock_rules.reckon(now, crawl.clock_last, stored_shift, expected)
if clock_shift ~= stored_shift and ARGV[2] ~= '' then call('HSET', P .. 'crawl', 'clock_shift', format('%.17g', clock_shift)) end
-- Its weight at the hosts that it shares with other crawls; nil if it shares none.
crawl.shift, crawl.share = clock_shift, tonumber(crawl.share or nil)
is_cancelled, is_sharded = crawl.state == 'cancelled', crawl.shards and true or false

-- The kinds of the crawl's tasks besides http, in the order in which they came, and whether a name is one of them. Nil, as in most
-- crawls, when all its tasks are of the kind http.
if crawl.kinds and crawl.kinds ~= '' then
  kind_names, is_kind = {}, {}
  for name in string.gmatch(crawl.kinds, '[^,]+') do
    kind_names[#kind_names + 1] = name
    is_kind[name] = true
  end
end

-- The crawl's time and its shift, by which the caller reckons from here on.
function time_of_crawl()
  return format('%.17g %.17g', now, clock_shift)
end

-- The counters of tasks by state; their sum is the number of tasks that the crawl has accepted.
TASK_STATES = {'queued', 'delayed', 'leased', 'done', 'dead', 'cancelled'}
counted = {}

function count(name, amount)
  counted[name] = (counted[name] or 0) + amount
end

-- So many tasks more of another kind than http wait, queued, delayed or cancelled.
function count_kind(kind, amount)
  count('kind:' .. kind, amount)
end

function save_counts()
  for name, amount in pairs(counted) do
    if amount ~= 0 then call('HINCRBY', P .. 'count', name, format('%.0f', amount)) end
  end
end

-- The sum of these counters as they are stored.
function sum_of_counts(...)
  local total = 0
  for _, value in ipairs(call('HMGET', P .. 'count', ...)) do total = total + (tonumber(value) or 0) end
  return total
end

function tally(kind, name, amount)
  call('HINCRBY', P .. kind, name, format('%.0f', amount))
end

-- A shard counts the events that can end its quiet: a crawl is finished when all its shards were quiet at one moment.
function note_move()
  if is_sharded then call('HINCRBY', P .. 'count', 'moves', 1) end
end

-- The run of the server is part of it: a count that was lost with the server's last second could come up again.
function moves_so_far()
  return (call('HGET', P .. 'count', 'moves') or 0) .. ' ' .. crawl.run
end

-- A number that is read back as it is.
function exact(number)
  return format('%.17g', number)
end

-- How many feeders have time left.
function feeders_left()
  return call('ZCOUNT', P .. 'feeders', '(' .. exact(now), '+inf')
end

-- The feeders whose time is over by then: those that only kept the crawl open, or the others, which are lost.
function feeders_over(stayed, time)
  local found = {}
  for _, feeder in ipairs(call('ZRANGEBYSCORE', P .. 'feeders', '-inf', exact(time))) do
    if (string.sub(feeder, 1, #STAYER) == STAYER) == stayed then found[#found + 1] = feeder end
  end
  return found
end

-- Whether the crawl is fed. One that was opened to be fed, also by a release without feeders, waits for its first feeder.
function is_fed()
  return crawl.feeding and (call('EXISTS', P .. 'feeders') == 0 or feeders_left() > 0)
end

-- New work came into the crawl; a finished crawl runs again.
function revive()
  note_move()
  if crawl.state == 'finished' then
    crawl.state = 'running'
    call('HSET', P .. 'crawl', 'state', 'running')
    call('HDEL', P .. 'crawl', 'finished')
    -- The time before was none in which it ran. No leases are out, which are spared by the latest time.
    call('HSET', P .. 'crawl', 'clock_last', format('%.17g', now))
  end
end
