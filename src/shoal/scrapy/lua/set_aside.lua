-- set_aside: move an entry that is no start URL to a list for people. If two processes read it, only one moves it.
--
-- KEYS[1]   those under way
-- KEYS[2]   the list of those that were set aside
-- ARGV[1]   the member of KEYS[1]
-- ARGV[2]   the entry, as it was pushed
-- Reply     1, or 0 when another process has done it
local removed = redis.call('ZREM', KEYS[1], ARGV[1])
if removed == 1 then redis.call('RPUSH', KEYS[2], ARGV[2]) end
return removed
