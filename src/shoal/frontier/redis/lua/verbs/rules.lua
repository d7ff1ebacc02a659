-- include: crawl exits rosters using judging lanes
-- rules: a lane's rules while they are valid.
--
-- ARGV[3]  lane
-- Reply    {"ok", version, rules}; version 0 when there are none
local lane = find_lane(ARGV[3])
if lane and lane.rules_until > now then return {'ok', lane.version, call('HGET', P .. 'rules', ARGV[3]) or ''} end
return {'ok', 0, ''}
