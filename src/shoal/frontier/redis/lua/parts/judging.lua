-- Judging exits: what the end of a request does to the one it went through.
--
-- A report says how the exit did: size, elapsed, place of the verdict (8, 8 and 1 bytes) and, where something is to be kept for
-- it, "=" and that. There is none when nobody knows.
local REPORT, VERDICTS, spent = '>ddB', {'ok', 'blocked', 'failed', 'used', 'unused'}, 0

local read_uses, end_exit, save_exits
do
  local USE = '<ddddddddd'
  local NEW_USE = pack(USE, 0, 0, 0, 0, 0, 0, 0, 0, 0)

  -- Read at once how these exits did so far; save_exits writes them at once, too.
  function read_uses(lane, places)
    local members, uses = {}, {}
    for i = 1, #places do members[i] = member_of(places[i]) end
    local values = call('HMGET', P .. 'uses:' .. lane.name, unpack(members))
    for i = 1, #places do uses[places[i]] = values[i] or NEW_USE end
    lane.uses = {of = uses, members = members, places = places}
  end

  local function save_uses(lane)
    local values, read = {}, lane.uses
    for i = 1, #read.places do
      values[2 * i - 1], values[2 * i] = read.members[i], read.of[read.places[i]]
    end
    lane.uses = nil
    write_in_parts('HSET', P .. 'uses:' .. lane.name, values)
  end

  -- How the lane's exits did; its roster is written with its record.
  function save_exits(lane)
    if lane.uses then save_uses(lane) end
    if not lane.roster.first_rest then first_rest_of(lane) end
  end

  -- How long an exit rests the so-manieth time in a row.
  local function rest_of(pool, times)
    return math.min(pool.quarantine * 2 ^ math.min(times - 1, 60), pool.max_quarantine)
  end

  local function strike(lane, exit, token)
    local row = need_exit(exit)
    if row.struck ~= lane.name then row.strikes, row.struck = row.strikes + 1, lane.name end
    if row.strikes >= STRIKES and (row.parked <= now or row.trial == token) then
      row.parkings = row.parkings + 1
      row.parked, row.trial = now + rest_of(lane.roll, row.parkings), 0
    end
    save_exit(exit)
  end

  local function forgive(exit)
    local row = find_exit(exit)
    if row and (row.strikes > 0 or row.parked > 0) then
      row.strikes, row.parkings, row.trial, row.struck, row.parked = 0, 0, 0, '', 0
      save_exit(exit)
    end
  end

  local function fall_ill(lane, place, until_then)
    local roster = lane.roster
    local mark = mark_at(roster, place)
    local was_put_off = mark == MARK.OFF or mark == MARK.PARKED
    local start = was_put_off and end_rest(lane, place) or roster.nexts[place] or 0
    set_next(roster, place, math.max(start, until_then))
    if mark ~= MARK.GONE then set_mark(roster, place, MARK.TRIED) end
  end

  -- An exit that was turned away or failed rests once nothing is in flight through it any more.
  local function let_rest(lane, place)
    local roster = lane.roster
    if mark_at(roster, place) == MARK.TRIED and not roster.flights[place] then
      set_mark(roster, place, MARK.ILL)
      rest(lane, place, math.max(roster.nexts[place] or 0, now))
      set_next(roster, place, nil)
    end
  end

  -- Gives the exit's streak, and until when it rests.
  local function judge(lane, place, token, verdict, streak, rests)
    local pool = lane.roll
    if verdict == 'ok' then
      if mark_at(lane.roster, place) == MARK.TRIED then
        set_mark(lane.roster, place, MARK.RING)
        lane.roster.starved = 0
      end
      return 0, rests
    end
    if not pool.exists or verdict == 'used' then return streak, rests end
    -- Many requests in flight when a host shuts an exit out are one reason to rest, not many.
    if streak == 0 or now >= rests then
      streak = streak + 1
      rests = now + rest_of(pool, streak)
      fall_ill(lane, place, rests)
    end
    if verdict == 'failed' then strike(lane, name_at(pool, place), token) end
    return streak, rests
  end

  local function leave_exit(lane, place, token, report)
    local exit, session = name_at(lane.roll, place), report and #report > 17 and string.sub(report, 19)
    local row = session and need_exit(exit) or find_exit(exit)
    if not row then return end
    if row.holder == token then row.holder = 0 elseif not session then return end
    if session then
      row.sessions = row.sessions + 1
      call('HSET', P .. 'sessions', exit, session)
    end
    save_exit(exit)
  end

  -- The request counts, unless the exit was not used. One that went well through a healthy exit changes nothing else. Gives how
  -- the exit did from here on.
  local function count_use(lane, place, token, report, use)
    local pool, its_size, its_elapsed, verdict = lane.roll, 0, 0
    if report then
      its_size, its_elapsed, verdict = unpack_struct(REPORT, report)
      verdict = VERDICTS[verdict + 1]
    end
    if verdict == 'unused' then return use end
    local ok, size, elapsed, cost, blocked, failed, unknown, streak, rests = unpack_struct(USE, use)
    local price = pool.exists and pool.cost + its_size / 1e9 * pool.cost_per_gb or 0
    spent = spent + price
    if verdict == 'ok' then
      ok = ok + 1
      if has_rows then forgive(name_at(pool, place)) end
    elseif verdict == 'blocked' then
      blocked = blocked + 1
    elseif verdict == 'failed' then
      failed = failed + 1
    else
      unknown = unknown + 1
    end
    if verdict and (verdict ~= 'ok' or streak > 0) then
      streak, rests = judge(lane, place, token, verdict, streak, rests)
    end
    return pack(USE, ok, size + its_size, elapsed + its_elapsed, cost + price, blocked, failed, unknown, streak, rests)
  end

  -- A lease of the lane is over.
  function end_exit(lane, place, token, report)
    local roster, read = lane.roster or roster_of(lane), lane.uses
    local flight = roster.flights[place]
    roster.flights[place] = flight and flight > 1 and flight - 1 or nil
    if roster.is_round_done then roster.is_round_done = nil end
    if has_rows or (report and #report > 17) then leave_exit(lane, place, token, report) end
    if read and read.of[place] then
      read.of[place] = count_use(lane, place, token, report, read.of[place])
    else
      local key, member = P .. 'uses:' .. lane.name, member_of(place)
      call('HSET', key, member, count_use(lane, place, token, report, call('HGET', key, member) or NEW_USE))
    end
    if roster.marks ~= '' then let_rest(lane, place) end
    lane.looks = true
  end
end

local function save_spent()
  if spent ~= 0 then call('HINCRBYFLOAT', P .. 'crawl', 'cost', format('%.17g', spent)) end
  crawl.cost, spent = crawl.cost + spent, 0
end

-- A crawl whose cost has reached its budget waits for somebody to raise it; one that has nothing left to do is finished.
local function pause_if_spent()
  if crawl.state ~= 'running' or crawl.max_cost == 0 or crawl.cost < crawl.max_cost then return end
  local left = 0
  for _, name in ipairs({'queued', 'delayed', 'leased'}) do
    left = left + (tonumber(call('HGET', P .. 'count', name)) or 0) + (counted[name] or 0)
  end
  if left > 0 then
    crawl.state = 'paused'
    call('HSET', P .. 'crawl', 'state', 'paused')
  end
end
