-- needs: bloom expiry
-- gives: MAX_SPLITS buckets seen_prefix seen_format half bucket_at low_of_task low_of_decimals set_of grow_seen
-- Dedup: every key that a crawl accepted, as 64-bit integers in sets (buckets) small enough to stay intsets. In crawls whose keys
-- expire, only the keys of tasks that have not ended; the others are in buckets of the same number, by generation (see expiry).
-- The buckets grow one by one (linear hashing over the key's low 24 bits): one bucket is split for every 224 keys.
--
-- seen:N  keys in decimals
local PER_BUCKET, MAX_BUCKETS = 224, 16777216
MAX_SPLITS = 8
buckets = tonumber(crawl.buckets) or 1
seen_prefix, half = P .. 'seen:', 1
-- Formatting an integer takes a third of the time of formatting any number.
seen_format = string.gsub(seen_prefix, '%%', '%%%%') .. '%d'
while half * 2 <= buckets do half = half * 2 end

-- The number of the bucket for keys with these low bits.
function bucket_at(low)
  local bucket = low % (half * 2)
  if bucket >= buckets then bucket = bucket - half end
  return bucket
end

-- The low bits of a key in the first eight bytes.
function low_of_task(task)
  return (unpack_struct('>I3', task, 6))
end

-- The low bits of a key written in decimals, up to a power of two. Lua's numbers have 53 bits, a key 64; but the last
-- fifteen digits alone decide its low fifteen bits.
function low_of_decimals(key, size)
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

-- The set that has a key, and the generation if it is a set of ended tasks; nil: the key is not known.
function set_of(bucket, decimals)
  if call('SISMEMBER', seen_prefix .. bucket, decimals) == 1 then return seen_prefix .. bucket end
  local number = ttl and generation_of(bucket, decimals)
  if number then return past_set(number, bucket), number end
  return nil
end

-- Move about half of the keys of one bucket into a new bucket. They are added before they are removed from the old one: after a
-- crash in between some keys are in both buckets, but none is missing.
local function split_bucket()
  local old, new, size, prefixes, moved = buckets - half, buckets, half * 2, {seen_prefix}, {}
  for _, number in ipairs(ttl and kept_generations() or {}) do prefixes[#prefixes + 1] = past_set(number, '') end
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

-- Split buckets until this number of keys fits, a bounded number per call.
function grow_seen(keys)
  if bloom_error then return grow_bloom(keys) end
  local splits = 0
  while keys > PER_BUCKET * buckets and buckets < MAX_BUCKETS and splits < MAX_SPLITS do
    split_bucket()
    splits = splits + 1
  end
end
