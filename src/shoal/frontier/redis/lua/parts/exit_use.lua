-- needs: crawl rosters exit_rules other_lanes
-- gives: spent verdict_of read_uses end_exit save_exits save_spent
-- The effect of an ended request on its exit.
--
-- A report has size, elapsed, index of the verdict in VERDICTS from 0 on (8, 8 and 1 bytes) and, if a session is to be kept for the
-- exit, "=" and the session. There is no report if the worker was lost.
spent = 0

function verdict_of(report)
  return VERDICTS[string.byte(report, 17) + 1]
end

local REPORT, REPORT_SIZE, USE = '>dd', 17, '<ddddddddd'
local NEW_USE = pack(USE, 0, 0, 0, 0, 0, 0, 0, 0, 0)

-- Read the uses of several exits at once; save_exits writes them at once, too.
function read_uses(lane, indexes)
  local members, uses = {}, {}
  for i = 1, #indexes do members[i] = member_of(indexes[i]) end
  local values = call('HMGET', P .. 'uses:' .. lane.name, unpack(members))
  for i = 1, #indexes do uses[indexes[i]] = values[i] or NEW_USE end
  lane.uses = {of = uses, members = members, indexes = indexes}
end

local function save_uses(lane)
  local values, read = {}, lane.uses
  for i = 1, #read.indexes do
    values[2 * i - 1], values[2 * i] = read.members[i], read.of[read.indexes[i]]
  end
  lane.uses = nil
  write_in_parts('HSET', P .. 'uses:' .. lane.name, values)
end

-- Write the uses of the lane's exits; its roster is written with its record.
function save_exits(lane)
  if lane.uses then save_uses(lane) end
  if not lane.roster.first_rest then first_rest_of(lane) end
end

-- The exit failed; after failures towards STRIKES lanes it is parked for all lanes.
local function strike(lane, exit, token)
  exit_rules.parking_after(need_exit(exit), lane.pool, lane.name, token)
  save_exit(exit)
end

-- A request succeeded: the exit's strikes and its parking end.
local function forgive(exit)
  local row = find_exit(exit)
  if row and (row.strikes > 0 or row.parked_until > 0) then
    row.strikes, row.parkings, row.trial, row.struck_lane, row.parked_until = 0, 0, 0, '', 0
    save_exit(exit)
  end
end

-- The exit is on probation until nothing is in flight through it: then its quarantine begins (see begin_quarantine).
local function put_on_probation(lane, index, rests_until)
  local roster = lane.roster
  local mark = mark_at(roster, index)
  local was_put_off = mark == HELD or mark == PARKED
  local start = was_put_off and end_rest(lane, index) or roster.next_starts[index] or 0
  set_next_start(roster, index, math.max(start, rests_until))
  if mark ~= REMOVED then set_mark(roster, index, ON_PROBATION) end
end

local function begin_quarantine(lane, index)
  local roster = lane.roster
  if mark_at(roster, index) == ON_PROBATION and not roster.flights[index] then
    set_mark(roster, index, QUARANTINED)
    rest(lane, index, math.max(roster.next_starts[index] or 0, now))
    set_next_start(roster, index, nil)
  end
end

-- Gives the exit's failure streak, and until when it rests.
local function judge(lane, index, token, verdict, streak, rests_until)
  local pool = lane.pool
  if verdict == 'ok' then
    if mark_at(lane.roster, index) == ON_PROBATION then
      set_mark(lane.roster, index, HEALTHY)
      lane.roster.starved_since = 0
    end
    return 0, rests_until
  end
  if not pool.exists or verdict == 'used' then return streak, rests_until end
  local new_streak, new_until = exit_rules.quarantine_after(streak, rests_until, pool)
  if new_streak > streak then put_on_probation(lane, index, new_until) end
  if verdict == 'failed' then strike(lane, name_at(pool, index), token) end
  return new_streak, new_until
end

-- The lease no longer holds the exit; its reported session is kept.
local function let_go(lane, index, token, report)
  local exit, session = name_at(lane.pool, index), report and #report > REPORT_SIZE and string.sub(report, REPORT_SIZE + 2)
  local row = session and need_exit(exit) or find_exit(exit)
  if not row then return end
  if row.holder == token then
    row.holder = 0
    if lane.pool.exclusive ~= 0 then other_lanes.let_go(exit) end
  elseif not session then return end
  if session then
    row.sessions = row.sessions + 1
    call('HSET', P .. 'sessions', exit, session)
  end
  save_exit(exit)
end

-- Count the request, unless the exit was not used; gives the new use. A success through a healthy exit changes nothing else.
local function count_use(lane, index, token, report, use)
  local pool, its_size, its_elapsed, verdict = lane.pool, 0, 0
  if report then
    its_size, its_elapsed = unpack_struct(REPORT, report)
    verdict = verdict_of(report)
  end
  if verdict == 'unused' then return use end
  local ok, size, elapsed, cost, blocked, failed, unknown, streak, rests_until = unpack_struct(USE, use)
  local price = exit_rules.cost_of(pool, verdict, its_size)
  spent = spent + price
  if verdict == 'ok' then
    ok = ok + 1
    if has_exit_rows then forgive(name_at(pool, index)) end
  elseif verdict == 'blocked' then
    blocked = blocked + 1
  elseif verdict == 'failed' then
    failed = failed + 1
  else
    unknown = unknown + 1
  end
  if verdict and (verdict ~= 'ok' or streak > 0) then
    streak, rests_until = judge(lane, index, token, verdict, streak, rests_until)
  end
  return pack(USE, ok, size + its_size, elapsed + its_elapsed, cost + price, blocked, failed, unknown, streak, rests_until)
end

-- End a lease's use of its exit. Without a report, the result of the request is not known.
function end_exit(lane, index, token, report)
  local roster, read = lane.roster or roster_of(lane), lane.uses
  local flight = roster.flights[index]
  roster.flights[index] = flight and flight > 1 and flight - 1 or nil
  if roster.is_round_done then roster.is_round_done = nil end
  if has_exit_rows or (report and #report > REPORT_SIZE) then let_go(lane, index, token, report) end
  if read and read.of[index] then
    read.of[index] = count_use(lane, index, token, report, read.of[index])
  else
    local key, member = P .. 'uses:' .. lane.name, member_of(index)
    call('HSET', key, member, count_use(lane, index, token, report, call('HGET', key, member) or NEW_USE))
  end
  if roster.marks ~= '' then begin_quarantine(lane, index) end
  lane.exits_changed = true
end

function save_spent()
  if spent ~= 0 then call('HINCRBYFLOAT', P .. 'crawl', 'cost', format('%.17g', spent)) end
  crawl.cost, spent = crawl.cost + spent, 0
end
