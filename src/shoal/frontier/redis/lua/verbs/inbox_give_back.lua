-- inbox_give_back: let others take an inbox, with the entries that the caller has taken and not deleted.
--
-- KEYS[1]  the taker
-- ARGV[1]  the name of the caller
-- Reply    1, or 0 to a caller that is not the taker
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
return 1
