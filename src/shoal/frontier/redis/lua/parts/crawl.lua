-- Shared by the verbs of a crawl: the clock, the crawl's record, the counters.
--
-- KEYS[1]  the prefix of all keys of one shard; they share its hash tag
-- ARGV[1]  the time in seconds, for tests; "" is the server's own
-- ARGV[2]  the server's run_id as the caller sees it; "" for verbs that only look
--
-- Replies {"none"} when there is no such crawl, and {"repair"} while the data was not checked since the server
-- restarted: nothing may change before that.
local P, call, format, pack, unpack_struct = KEYS[1], redis.call, string.format, struct.pack, struct.unpack

local server_time = call('TIME')
local now = tonumber(ARGV[1]) or server_time[1] + server_time[2] / 1000000

local record = call('HMGET', P .. 'crawl', 'state', 'feeding', 'interval', 'cap', 'needs_rules', 'pages', 'per_lane',
  'per_shape', 'epoch', 'run', 'dedup_ttl', 'shards', 'spent', 'shard', 'max_cost', 'cost')
if not record[1] or record[1] == 'deleting' then return {'none'} end
if ARGV[2] ~= '' and record[10] ~= ARGV[2] then return {'repair'} end
local crawl = {
  state = record[1],
  feeding = record[2] == '1',
  interval = tonumber(record[3]),
  cap = tonumber(record[4]),
  needs_rules = record[5] == '1',
  pages = tonumber(record[6]),
  per_lane = tonumber(record[7]),
  per_shape = tonumber(record[8]),
  epoch = record[9],
  max_cost = tonumber(record[15]) or 0,
  cost = tonumber(record[16]) or 0,
  is_sharded = record[12] and true or false,
}
local is_cancelled = crawl.state == 'cancelled'

local counted = {}

local function count(name, amount)
  counted[name] = (counted[name] or 0) + amount
end

local function save_counts()
  for name, amount in pairs(counted) do
    if amount ~= 0 then call('HINCRBY', P .. 'count', name, format('%.0f', amount)) end
  end
end

local function tally(kind, name, amount)
  call('HINCRBY', P .. kind, name, format('%.0f', amount))
end

-- A shard counts what can end its quiet: a crawl is finished when all its shards were quiet at one moment.
local function stir()
  if crawl.is_sharded then call('HINCRBY', P .. 'count', 'moves', 1) end
end

-- The run of the server is part of it: a count that was lost with the last second could come up again.
local function moves_so_far()
  return (call('HGET', P .. 'count', 'moves') or 0) .. ' ' .. record[10]
end

-- Whether nobody seems to deliver this entry of an outbox: whoever wrote it would have done so by now.
local function is_left_behind(entry)
  local _, posted = unpack_struct('>dd', entry)
  return posted <= now - 2
end

-- Something came into a crawl, perhaps a finished one.
local function revive()
  stir()
  if crawl.state == 'finished' then
    crawl.state = 'running'
    call('HSET', P .. 'crawl', 'state', 'running')
    call('HDEL', P .. 'crawl', 'finished')
  end
end

-- The name under which a reason is counted: what stands before the colon.
local function outcome_of(reason)
  return (string.gsub(reason, ':.*$', ''))
end
