-- inbox_forget: delete the taken entries of an inbox: they are in the frontier now.
-- Only for their taker: one that was replaced meanwhile changes nothing.
--
-- KEYS[1]  the taken entries
-- KEYS[2]  the taker
-- ARGV[1]  the name of the caller
-- Reply    1, or 0 to a caller that is not the taker
local taken, taker, caller = KEYS[1], KEYS[2], ARGV[1]
if redis.call('GET', taker) ~= caller then return 0 end
redis.call('DEL', taken, taker)
return 1
