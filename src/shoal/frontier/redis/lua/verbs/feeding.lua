-- needs: crawl
-- feeding: register a feeder for some seconds, which sets a finished crawl running; or remove it: it has fed everything.
--
-- ARGV[3]  feeder
-- ARGV[4]  seconds, "0" or less: it has fed everything
-- ARGV[5]  it redoes the work of feeders that expire within this many seconds; "": of none
-- Reply    {"ok"}, or {"keys"}: the crawl's keys were dropped
--
-- feeders  feeder → until when it feeds. A feeder that has fed everything is removed; an expired one is lost, unless it only kept
--          the crawl open (STAYER)
local feeder, seconds, makes_up = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
if seconds > 0 and crawl.keys then return {'keys'} end
local function forget(feeders)
  for _, one in ipairs(feeders) do call('ZREM', P .. 'feeders', one) end
end
forget(feeders_over(true, now))
if makes_up then forget(feeders_over(false, now + makes_up)) end
if seconds > 0 then
  call('ZADD', P .. 'feeders', exact(now + seconds), feeder)
  call('HSET', P .. 'crawl', 'feeding', 1)
  revive()
else
  call('ZREM', P .. 'feeders', feeder)
  call('HSET', P .. 'crawl', 'feeding', feeders_left() > 0 and 1 or 0)
end
return {'ok'}
