-- needs: crawl
-- gives: bloom_error bloom_knows bloom_learn grow_bloom
-- Dedup for crawls that accept a small loss: Bloom filters over plain bitmaps. Each has twice the room of the one before and
-- half its error, so that all together stay below the requested error for any number of keys.
--
-- bloom:N  the bits of filter N, from 1 on
local FIRST_ROOM, MAX_BITS, LOG_2 = 65536, 4294967296, math.log(2)
-- The error that the crawl accepts; nil: its keys are kept exactly.
bloom_error = tonumber(string.match(crawl.dedup or '', '^bloom:(.+)$'))
local filters = tonumber(crawl.filters) or 1
local filter_shapes = {}

local function filter_at(number)
  local filter = filter_shapes[number]
  if not filter then
    local hashes = math.ceil(-math.log(bloom_error / 2 ^ number) / LOG_2)
    local room = FIRST_ROOM * 2 ^ (number - 1)
    filter = {key = P .. 'bloom:' .. number, hashes = hashes, bits = math.min(MAX_BITS, math.ceil(room * hashes / LOG_2))}
    filter.room = filter.bits * LOG_2 / hashes
    filter_shapes[number] = filter
  end
  return filter
end

-- Two numbers of 44 bits from a key's eight bytes: multiplied by the small factors below they stay exact in a double.
local function two_hashes(key)
  local digest = redis.sha1hex(key)
  return tonumber(string.sub(digest, 1, 11), 16), tonumber(string.sub(digest, 12, 22), 16)
end

function bloom_knows(key)
  local first, second = two_hashes(key)
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

function bloom_learn(key)
  local filter = filter_at(filters)
  if not filter.is_there then
    -- Full length from the start: a growing bitmap gets up to twice the memory that it needs.
    if call('EXISTS', filter.key) == 0 then call('SETBIT', filter.key, filter.bits - 1, 0) end
    filter.is_there = true
  end
  local first, second = two_hashes(key)
  for i = 1, filter.hashes do call('SETBIT', filter.key, (first + i * second + i * i) % filter.bits, 1) end
end

function grow_bloom(keys)
  local room = 0
  for number = 1, filters do room = room + filter_at(number).room end
  if keys > room then call('HSET', P .. 'crawl', 'filters', filters + 1) end
end
