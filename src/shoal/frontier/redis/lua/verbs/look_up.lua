-- needs: seen
-- look_up: the state of one key, as far as it can be told without reading the waiting tasks.
--
-- ARGV[3]  key in decimals
-- ARGV[4]  key (8 bytes)
-- Reply    {"ok", "unknown"}, {"ok", "held", ends in seconds, held}, {"ok", "dead", letter} or {"ok", "known", state of the crawl}
local decimals, key = ARGV[3], ARGV[4]
local is_known
if bloom_error then
  is_known = bloom_knows(key)
else
  is_known = set_of(bucket_at(low_of_task(key)), decimals)
end
if not is_known and not crawl.keys then return {'ok', 'unknown'} end
local held = call('HGET', P .. 'held', key)
if held then
  local ends = tonumber(call('ZSCORE', P .. 'leases', key) or now)
  return {'ok', 'held', format('%.17g', math.max(0, ends - now)), held}
end
local letter = call('HGET', P .. 'dead', key)
if letter then return {'ok', 'dead', letter} end
if crawl.keys then return {'ok', 'unknown'} end
return {'ok', 'known', crawl.state}
