-- include: crawl turns tasks bloom seen holder
-- look_up: what can be said of one key without looking through the tasks that wait.
--
-- ARGV[3]  key in decimals
-- ARGV[4]  key (8 bytes)
-- Reply    {"ok", "unknown"}, {"ok", "held", ends in seconds, held}, {"ok", "dead", letter} or {"ok", "known", state of the crawl}
local is_known
if asked then
  is_known = bloom_knows(ARGV[4])
else
  is_known = set_of(place_at(low_of_task(ARGV[4])), ARGV[3])
end
if not is_known then return {'ok', 'unknown'} end
local held = call('HGET', P .. 'held', ARGV[4])
if held then
  local ends = tonumber(call('ZSCORE', P .. 'leases', ARGV[4]) or now)
  return {'ok', 'held', format('%.17g', math.max(0, ends - now)), held}
end
local letter = call('HGET', P .. 'dead', ARGV[4])
if letter then return {'ok', 'dead', letter} end
return {'ok', 'known', crawl.state}
