-- needs: crawl
-- keep_point: add a point to the crawl's history. It replaces the point of the same step; points that are too old are deleted.
--
-- ARGV[3]  the point
-- Reply    {"ok", "1", or "0" if it replaced one of the same short step}
--
-- points       time (double) and point → time, one in POINT_SECONDS
-- points:long  the same, one in LONG_POINT_SECONDS
local point = pack('>d', wall) .. ARGV[3]

local function keep(key, step, kept_seconds)
  local slot = math.floor(wall / step)
  local replaced = call('ZREMRANGEBYSCORE', key, exact(slot * step), '(' .. exact((slot + 1) * step))
  call('ZADD', key, exact(wall), point)
  call('ZREMRANGEBYSCORE', key, '-inf', '(' .. exact(math.floor((wall - kept_seconds) / step) * step))
  return replaced
end

keep(P .. 'points:long', LONG_POINT_SECONDS, LONG_POINTS_KEPT_SECONDS)
return {'ok', keep(P .. 'points', POINT_SECONDS, POINTS_KEPT_SECONDS) == 0 and '1' or '0'}
