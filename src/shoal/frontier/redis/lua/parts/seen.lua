-- Dedup: every key a crawl accepted, as 64-bit integers in sets small enough to stay intsets. Where keys expire, only those
-- of tasks that have not ended; the others are in sets of the same number, by generation (see turns).
-- The sets grow one by one (linear hashing over the key's low 24 bits): one set is split for every 224 keys.
local PER_BUCKET, MAX_BUCKETS = 224, 16777216
local buckets = tonumber(dedup[3]) or 1
local seen_prefix, half = P .. 'seen:', 1
while half * 2 <= buckets do half = half * 2 end

-- The number of the set of a key with these low bits.
local function place_at(low)
  local place = low % (half * 2)
  if place >= buckets then place = place - half end
  return place
end

-- The low bits of a key in its eight bytes.
local function low_of_task(task)
  return (unpack_struct('>I3', task, 6))
end

-- The low bits of a key written in decimals, up to a power of two. Lua's numbers have 53 bits, a key 64; but the last
-- fifteen digits alone decide its low fifteen bits.
local function low_of_decimals(key, size)
  if #key <= 15 then return tonumber(key) % size end
  local low
  if size <= 32768 then
    low = tonumber(string.sub(key, -15)) % size
  else
    local head, tail = string.match(key, '(%d+)(%d%d%d%d%d%d%d%d%d)$')
    low = ((tonumber(head) % size) * (1000000000 % size) + tonumber(tail)) % size
  end
  return string.byte(key) == 45 and (size - low) % size or low
end

-- Move the half of one set that belongs into a new one. The moved keys go last from the old set: a crash in between
-- leaves some of them twice, never none.
local function split_bucket()
  local old, new, size, prefixes, moved = buckets - half, buckets, half * 2, {seen_prefix}, {}
  for _, number in ipairs(ttl and generations() or {}) do prefixes[#prefixes + 1] = past_set(number, '') end
  for i, prefix in ipairs(prefixes) do
    local keys = {}
    for _, key in ipairs(call('SMEMBERS', prefix .. old)) do
      if low_of_decimals(key, size) == new then keys[#keys + 1] = key end
    end
    if #keys > 0 then call('SADD', prefix .. new, unpack(keys)) end
    moved[i] = keys
  end
  buckets = buckets + 1
  if half * 2 <= buckets then half = half * 2 end
  call('HSET', P .. 'crawl', 'buckets', buckets)
  for i, prefix in ipairs(prefixes) do
    if #moved[i] > 0 then call('SREM', prefix .. old, unpack(moved[i])) end
  end
end

local function grow_seen(keys)
  if asked then return grow_bloom(keys) end
  local splits = 0
  while keys > PER_BUCKET * buckets and buckets < MAX_BUCKETS and splits < 8 do
    split_bucket()
    splits = splits + 1
  end
end
