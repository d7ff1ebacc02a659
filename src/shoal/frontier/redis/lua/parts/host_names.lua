-- needs: server
-- gives: host_names
-- lazy
-- Which crawls have a lane of a name, and the kept state of hosts whose crawls were deleted: for all crawls in the slot. Times are
-- of the server's clock.
--
-- hosts      lane → the crawls that have and share it, named as in keys, each with a newline
-- kept:LANE  last start, blocked until, rules until, delay of the rules, learnt interval, its expiry, expiry of all of it (doubles),
--            length of why (2 bytes), why (the reason for the rules' pace), rules
local KEPT = '>dddddddI2'
local slot, mine = string.match(P, '^(shoal:{[^}]*}:)(.*):$')
-- slot: the prefix of the slot's keys that belong to no crawl; is_shared: other crawls are in it; mine: this crawl, named as in keys
host_names = {slot = (slot or P) .. ':', is_shared = slot ~= nil, mine = mine}

-- The prefixes of the other crawls that share a lane of this name.
function host_names.others(name)
  local found = {}
  for crawl in string.gmatch(call('HGET', host_names.slot .. 'hosts', name) or '', '[^\n]+') do
    if crawl ~= mine then found[#found + 1] = slot .. crawl .. ':' end
  end
  return found
end

-- Register that this crawl shares a lane of this name; gives whether there are other lanes or kept state to read.
function host_names.join(name)
  local crawls, own = call('HGET', host_names.slot .. 'hosts', name) or '', mine .. '\n'
  if string.find('\n' .. crawls, '\n' .. own, 1, true) then return crawls ~= own end
  call('HSET', host_names.slot .. 'hosts', name, crawls .. own)
  return crawls ~= '' or call('EXISTS', host_names.slot .. 'kept:' .. name) == 1
end

function host_names.leave(name)
  local crawls = '\n' .. (call('HGET', host_names.slot .. 'hosts', name) or '')
  local first, last = string.find(crawls, '\n' .. mine .. '\n', 1, true)
  if not first then return end
  crawls = string.sub(crawls, 2, first) .. string.sub(crawls, last + 1)
  if crawls == '' then call('HDEL', host_names.slot .. 'hosts', name) else call('HSET', host_names.slot .. 'hosts', name, crawls) end
end

-- The kept state of a host that is valid at this time of the server; nil: none.
function host_names.kept(name, clock)
  local value = call('GET', host_names.slot .. 'kept:' .. name)
  if not value then return nil end
  local host, why, at = {}, nil, nil
  host.last_start, host.blocked_until, host.rules_until, host.delay, host.learnt, host.learnt_until, host.ends, why, at =
    unpack_struct(KEPT, value)
  if host.ends <= clock then return nil end
  host.why, host.rules = string.sub(value, at, at + why - 1), string.sub(value, at + why)
  return host
end

-- Keep the still valid state of a lane that is about to be deleted. Its times are of the server's clock.
function host_names.keep(name, lane, clock)
  local host = host_names.kept(name, clock) or {
    last_start = 0, blocked_until = 0, rules_until = 0, delay = 0, learnt = 0, learnt_until = 0, ends = 0, why = '', rules = '',
  }
  host.last_start, host.blocked_until = math.max(host.last_start, lane.last_start), math.max(host.blocked_until, lane.blocked_until)
  if lane.rules_until > host.rules_until then
    host.rules_until, host.rules, host.delay, host.why = lane.rules_until, lane.rules, lane.delay, lane.why
  end
  if lane.learnt_until > host.learnt_until then host.learnt, host.learnt_until = lane.learnt, lane.learnt_until end
  host.ends = math.max(host.ends, lane.last_start + math.max(lane.interval, HEEDED_SECONDS), host.blocked_until, host.rules_until,
    host.learnt_until)
  if host.ends <= clock then return end
  call('SET', host_names.slot .. 'kept:' .. name, pack(KEPT, host.last_start, host.blocked_until, host.rules_until, host.delay, host.learnt,
    host.learnt_until, host.ends, #host.why) .. host.why .. host.rules, 'PX', format('%.0f', math.ceil((host.ends - clock) * 1000)))
end
