-- needs: crawl
-- points: the history of a crawl's last seconds, oldest first. Of more points than asked for, the latest in each of as many equal parts
-- of the time, as in rules/history.py. Points of the long step only from before the first of the short step.
--
-- ARGV[3]  seconds
-- ARGV[4]  how many points at most
-- Reply    {"ok", time, point, … for each}
local since, most, reply = wall - tonumber(ARGV[3]), tonumber(ARGV[4]), {'ok'}
local short, long = P .. 'points', P .. 'points:long'
local begins = call('ZRANGE', short, 0, 0, 'WITHSCORES')[2]
if not begins or most < 1 then return reply end

local function add(found)
  for i = 1, #found, 2 do
    reply[#reply + 1] = found[i + 1]
    reply[#reply + 1] = string.sub(found[i], 9)
  end
  return #found > 0
end

local low, before = exact(since), '(' .. begins
if call('ZCOUNT', long, low, before) + call('ZCOUNT', short, low, '+inf') <= most then
  add(call('ZRANGEBYSCORE', long, low, before, 'WITHSCORES'))
  add(call('ZRANGEBYSCORE', short, low, '+inf', 'WITHSCORES'))
  return reply
end

local oldest = call('ZRANGEBYSCORE', long, low, before, 'WITHSCORES', 'LIMIT', 0, 1)[2]
  or call('ZRANGEBYSCORE', short, low, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
local first, last = tonumber(oldest), tonumber(call('ZREVRANGE', short, 0, 0, 'WITHSCORES')[2])
local from = oldest
for part = 1, most do
  local edge = first + (last - first) * part / most
  local upto = part < most and '(' .. exact(edge) or '+inf'
  if not add(call('ZREVRANGEBYSCORE', short, upto, from, 'WITHSCORES', 'LIMIT', 0, 1)) then
    local of_long = part < most and edge < tonumber(begins) and upto or before
    add(call('ZREVRANGEBYSCORE', long, of_long, from, 'WITHSCORES', 'LIMIT', 0, 1))
  end
  from = exact(edge)
end
return reply
