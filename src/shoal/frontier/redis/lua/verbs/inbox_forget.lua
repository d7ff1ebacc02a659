-- Forgets what was taken from an inbox: it is in the frontier now.
-- Guarantee: only its taker can; one that was replaced meanwhile changes nothing.
-- KEYS: the taken entries, the taker. ARGV: who asks.
-- Gives 1, or 0 to one that is not the taker.
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
return 1
