-- needs: lanes
-- rules: a lane's valid rules.
--
-- ARGV[3]  lane
-- Reply    {"ok", version, rules}; version 0: there are none
local name = ARGV[3]
local lane = find_lane(name)
if lane and lane.rules_until > now then return {'ok', lane.version, call('HGET', P .. 'rules', name) or ''} end
return {'ok', 0, ''}
