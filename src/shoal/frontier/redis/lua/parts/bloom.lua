-- Dedup for crawls that accept a loss: Bloom filters over plain bitmaps. Each has twice the room of the one before and
-- half its error, so that all together stay below the error asked for, however many keys come.
--
-- bloom:N  the bits of filter N, from 1 on
local FIRST_ROOM, MAX_BITS, LOG_2 = 65536, 4294967296, math.log(2)
local dedup = call('HMGET', P .. 'crawl', 'dedup', 'filters', 'buckets')
local asked = tonumber(string.match(dedup[1] or '', '^bloom:(.+)$'))
local filters = tonumber(dedup[2]) or 1
local filter_shapes = {}

local function filter_at(number)
  local filter = filter_shapes[number]
  if not filter then
    local hashes = math.ceil(-math.log(asked / 2 ^ number) / LOG_2)
    local room = FIRST_ROOM * 2 ^ (number - 1)
    filter = {key = P .. 'bloom:' .. number, hashes = hashes, bits = math.min(MAX_BITS, math.ceil(room * hashes / LOG_2))}
    filter.room = filter.bits * LOG_2 / hashes
    filter_shapes[number] = filter
  end
  return filter
end

-- Two numbers of 44 bits from a key's eight bytes: with any of the factors below they stay exact in a double.
local function mixed(key)
  local digest = redis.sha1hex(key)
  return tonumber(string.sub(digest, 1, 11), 16), tonumber(string.sub(digest, 12, 22), 16)
end

local function bloom_knows(key)
  local first, second = mixed(key)
  for number = filters, 1, -1 do
    local filter = filter_at(number)
    local is_in = true
    for i = 1, filter.hashes do
      if call('GETBIT', filter.key, (first + i * second + i * i) % filter.bits) == 0 then
        is_in = false
        break
      end
    end
    if is_in then return true end
  end
  return false
end

local function bloom_learn(key)
  local filter = filter_at(filters)
  if not filter.is_there then
    -- At its full length from the start: a bitmap that grows gets up to twice the memory it needs.
    if call('EXISTS', filter.key) == 0 then call('SETBIT', filter.key, filter.bits - 1, 0) end
    filter.is_there = true
  end
  local first, second = mixed(key)
  for i = 1, filter.hashes do call('SETBIT', filter.key, (first + i * second + i * i) % filter.bits, 1) end
end

local function grow_bloom(keys)
  local room = 0
  for number = 1, filters do room = room + filter_at(number).room end
  if keys > room then call('HSET', P .. 'crawl', 'filters', filters + 1) end
end
