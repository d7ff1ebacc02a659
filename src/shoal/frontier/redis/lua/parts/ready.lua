-- needs: lanes outbox
-- gives: needs_opening room_of ready_lanes bring_back_lanes ending ask_again
-- Which lanes may start, how many tasks each may lend, and what a lease call says of the crawl.

-- twin: rules/lanes.py needs_opening
function needs_opening(lane)
  return crawl.needs_rules and lane.rules_until <= now
end

-- How many tasks the lane may start within the horizon.
function room_of(lane, limit, horizon)
  if not is_ready(lane) then return 0 end
  if needs_opening(lane) then return 1 end
  return lane_rules.starts_within(math.min(lane.waiting, lane.cap - lane.in_flight, limit), lane, horizon)
end

-- The lanes that may start, longest-waiting first. Call it when everything changed so far is saved.
function ready_lanes(limit, horizon)
  if crawl.state ~= 'running' or limit == 0 then return {} end
  local found = {}
  for _, member in ipairs(call('ZRANGEBYSCORE', P .. 'ready', '-inf', now + horizon, 'LIMIT', 0, limit)) do
    local lane = need_lane(string.sub(member, 9))
    if lane.member == member then
      found[#found + 1] = lane
    else
      -- Of a record that was lost: the lane has another age now.
      call('ZREM', P .. 'ready', member)
      call('ZREM', P .. 'busy', member)
    end
  end
  return found
end

-- Lanes whose next start lies further ahead than their pace and rests allow get a possible one, a bounded number per call. The clock
-- was wrong when it was written: before a step was noticed, or by an older shoal. In a cancelled crawl no lane has anything to start.
function bring_back_lanes()
  if is_cancelled then return end
  local members = call('ZREVRANGEBYSCORE', P .. 'ready', '+inf', '(' .. format('%.17g', now + FAR_SECONDS), 'LIMIT', 0, MAX_BROUGHT_BACK)
  for _, member in ipairs(members) do
    local lane = need_lane(string.sub(member, 9))
    if not lane.via then lane_rules.bring_back(lane) end
  end
end

-- "1" when the crawl has nothing left to do; a running one is then finished from here on. Counters are saved.
-- Of a crawl in several shards: "q" and its moves so far when this shard is quiet, "o" when entries of its outbox were left behind.
function ending()
  local left = sum_of_counts('queued', 'delayed', 'leased')
  if is_sharded then
    local oldest = unpack(call('ZRANGE', P .. 'outbox', 0, 0))
    if oldest then return is_left_behind(oldest) and 'o' or '0' end
  end
  if left ~= 0 or crawl.state == 'paused' or is_fed() then return '0' end
  if is_sharded then return 'q' .. moves_so_far() end
  if crawl.state == 'running' then
    call('HSET', P .. 'crawl', 'state', 'finished', 'finished', wall)
  end
  return '1'
end

-- Seconds until something can be lent that is there already, and the time of the crawl.
function ask_again()
  local times = {}
  if crawl.state == 'running' then
    for _, name in ipairs({'ready', 'later', 'leases'}) do
      local _, due = unpack(call('ZRANGE', P .. name, 0, 0, 'WITHSCORES'))
      times[#times + 1] = tonumber(due)
    end
  end
  return format('%.17g ', lane_rules.ask_again_in(times)) .. time_of_crawl()
end
