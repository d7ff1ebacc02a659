-- Judging exits: what the end of a request does to the one it went through.
local spent = 0

local read_uses, end_exit, save_exits
do
  local USE = '<ddddddddd'
  local NEW_USE = pack(USE, 0, 0, 0, 0, 0, 0, 0, 0, 0)

  -- Read how these exits did so far, as far as that was not read before. Rows stay packed: most of them only count up.
  function read_uses(lane, places)
    lane.uses = lane.uses or {}
    local missing, members = {}, {}
    for _, place in ipairs(places) do
      if not lane.uses[place] then
        missing[#missing + 1], members[#members + 1] = place, member_of(place)
      end
    end
    if #missing == 0 then return end
    for i, value in ipairs(call('HMGET', P .. 'uses:' .. lane.name, unpack(members))) do
      lane.uses[missing[i]] = value or NEW_USE
    end
  end

  -- What changed of the lane's exits; its roster is written with its record.
  function save_exits(lane)
    first_rest_of(lane)
    lane.tail = pack_roster(lane.roster)
    if not lane.changed then return end
    local values = {}
    for place in pairs(lane.changed) do
      values[#values + 1] = member_of(place)
      values[#values + 1] = lane.uses[place]
    end
    lane.changed = nil
    write_in_parts('HSET', P .. 'uses:' .. lane.name, values)
  end

  -- How long an exit rests the so-manieth time in a row.
  local function rest_of(pool, times)
    return math.min(pool.quarantine * 2 ^ math.min(times - 1, 60), pool.max_quarantine)
  end

  local function strike(lane, pool, exit, token)
    local row = need_exit(exit)
    if row.struck ~= lane.name then row.strikes, row.struck = row.strikes + 1, lane.name end
    if row.strikes >= STRIKES and (row.parked <= now or row.trial == token) then
      look_now(true)
      row.parkings = row.parkings + 1
      row.parked, row.trial = now + rest_of(pool, row.parkings), 0
    end
    save_exit(exit)
  end

  local function forgive(exit)
    local row = find_exit(exit)
    if row and (row.strikes > 0 or row.parked > 0) then
      look_now(true)
      row.strikes, row.parkings, row.trial, row.struck, row.parked = 0, 0, 0, '', 0
      save_exit(exit)
    end
  end

  -- The exit is ill from here on, or has recovered. Whether the lane starved shortly in between counts, too.
  local function change_health(lane, place, mark)
    local pool = lane.looks and find_pool(lane.via)
    if pool and not stuck_place(lane, pool) then note_starved(lane.roster) end
    set_mark(lane.roster, place, mark)
  end

  -- An exit that was turned away or failed rests once nothing is in flight through it any more.
  local function let_rest(lane, place)
    local roster = lane.roster
    if mark_at(roster, place) == MARK.TRIED and not roster.flights[place] then
      set_mark(roster, place, MARK.ILL)
      rest(lane, place, roster.nexts[place] or 0)
      roster.nexts[place] = nil
    end
  end

  local function fall_ill(lane, place, until_then)
    local roster = lane.roster
    local mark = mark_at(roster, place)
    roster.nexts[place] = math.max(roster.nexts[place] or 0, until_then)
    if mark == MARK.GONE then return end
    if mark == MARK.OFF then end_rest(lane, place) end
    if mark ~= MARK.TRIED then change_health(lane, place, MARK.TRIED) end
  end

  -- What the report says of the exit; gives its streak and until when it rests.
  local function judge(lane, pool, place, token, report, streak, rests)
    local verdict = report.verdict
    if verdict == 'ok' then
      if mark_at(lane.roster, place) == MARK.TRIED then change_health(lane, place, MARK.RING) end
      if has_exits() then forgive(name_at(roll_of(lane.via), place)) end
      return 0, rests
    end
    -- Many requests in flight when a host shuts an exit out are one reason to rest, not many.
    if pool and (streak == 0 or now >= rests) then
      streak = streak + 1
      rests = now + rest_of(pool, streak)
      fall_ill(lane, place, rests)
    end
    if pool and verdict == 'failed' then strike(lane, pool, name_at(pool, place), token) end
    return streak, rests
  end

  local function count_use(lane, pool, place, token, report)
    local requests, ok, blocked, failed, size, elapsed, cost, streak, rests = unpack_struct(USE, lane.uses[place])
    if not report or report.verdict ~= 'unused' then
      requests = requests + 1
      if pool then
        local price = pool.cost + (report and report.size / 1e9 * pool.cost_per_gb or 0)
        cost, spent = cost + price, spent + price
      end
    end
    if report and report.verdict ~= 'unused' then
      local verdict = report.verdict
      size, elapsed = size + report.size, elapsed + report.elapsed
      if verdict == 'ok' then ok = ok + 1 elseif verdict == 'blocked' then blocked = blocked + 1 else failed = failed + 1 end
      streak, rests = judge(lane, pool, place, token, report, streak, rests)
    end
    lane.uses[place] = pack(USE, requests, ok, blocked, failed, size, elapsed, cost, streak, rests)
    lane.changed = lane.changed or {}
    lane.changed[place] = true
  end

  local function leave_exit(exit, token, session)
    local row = session and need_exit(exit) or find_exit(exit)
    if not row then return end
    if row.holder == token then row.holder = 0 elseif not session then return end
    if session then
      row.sessions = row.sessions + 1
      call('HSET', P .. 'sessions', exit, session)
    end
    save_exit(exit)
  end

  -- A lease of the lane is over. The report says how the exit did; nil when nobody knows.
  function end_exit(lane, place, token, report)
    local roster, pool, session = roster_of(lane), find_pool(lane.via), report and report.session
    if not lane.uses or not lane.uses[place] then read_uses(lane, {place}) end
    local flight = (roster.flights[place] or 0) - 1
    roster.flights[place] = flight > 0 and flight or nil
    if session or has_exits() then leave_exit(name_at(roll_of(lane.via), place), token, session) end
    count_use(lane, pool, place, token, report)
    let_rest(lane, place)
    look_later(lane)
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
