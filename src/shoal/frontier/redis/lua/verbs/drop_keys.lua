-- needs: crawl key_names
-- drop_keys: delete the keys of a finished crawl, a bounded number of sets per call. From the mark in its record on, scripts that need
-- the keys end with {"keys"}.
--
-- ARGV[3]  "mark": if the shard is finished; "unmark": another shard is not; "drop"
-- Reply    {"ok", state, "1" if it is marked, "1" while keys are left}
--
-- Field `keys` of the record: "dropping", then "dropped"; missing while they are known.
local step, is_left = ARGV[3], false
if step == 'mark' and crawl.state == 'finished' and not crawl.keys then
  crawl.keys = 'dropping'
  call('HSET', P .. 'crawl', 'keys', crawl.keys)
elseif step == 'unmark' and crawl.keys == 'dropping' then
  crawl.keys = nil
  call('HDEL', P .. 'crawl', 'keys')
elseif step == 'drop' and crawl.keys == 'dropping' then
  is_left = remove_key_sets()
  if not is_left then
    call('HDEL', P .. 'crawl', 'filters')
    call('HSET', P .. 'crawl', 'buckets', 1, 'keys', 'dropped')
    call('HSET', P .. 'count', 'seen', 0)
    if crawl.dedup_ttl then call('HSET', P .. 'turns', 'ended0', 0, 'ended1', 0, 'ended2', 0) end
  end
end
return {'ok', crawl.state, crawl.keys and '1' or '0', is_left and '1' or '0'}
