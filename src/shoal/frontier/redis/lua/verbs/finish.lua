-- needs: crawl
-- finish: the second check of a quiet shard. If it is still quiet and nothing has moved since the first one, it is finished.
--
-- ARGV[3]  its moves so far at the first check
-- Reply    {"ok", "1" if nothing moved, else "0"}
local moves_before = ARGV[3]
local is_stopped = crawl.state == 'stopped'
local left = is_stopped and sum_of_counts('leased') or sum_of_counts('queued', 'delayed', 'leased')
local is_quiet = moves_so_far() == moves_before and left == 0 and call('EXISTS', P .. 'outbox') == 0
if not is_quiet or crawl.state == 'paused' or (is_fed() and not is_stopped) then return {'ok', '0'} end
if crawl.state == 'running' then call('HSET', P .. 'crawl', 'state', 'finished', 'finished', wall) end
return {'ok', '1'}
