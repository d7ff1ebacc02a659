-- needs: roster_record
-- gives: has_begun roster_of mark_at set_next_start set_mark rest end_rest first_rest_of review_roster
-- The rosters of lanes, and the exits that rest.
--
-- rests:LANE  index (see member_of) → when the rest of the exit ends; quarantined, held and parked exits
-- uses:LANE   index (see member_of) → ok, size, elapsed, cost, blocked, failed, requests of unknown end, failure streak, rests
--             until: nine doubles, written when a lease ends (see exit_use)
local STREAK_AT = 57

-- Whether the lane has a roster: it begins with the first lease of the lane.
function has_begun(lane)
  return lane.roster or #lane.value > RECORD_SIZE
end

-- The lane's roster; a lane without one gets a new one.
function roster_of(lane)
  if lane.roster then return lane.roster end
  if has_exit_rows == nil then has_exit_rows = call('EXISTS', P .. 'exits') == 1 end
  lane.pool = lane.pool or pool_of(lane.via)
  local pool = lane.pool
  if #lane.value > RECORD_SIZE then
    lane.roster = read_roster(lane.value, RECORD_SIZE + 1)
    lane.roster.elsewhere = lane.elsewhere
  else
    local begun = call('HINCRBY', P .. 'turns:via', lane.via, 1) - 1
    lane.roster = {
      size = pool.size, next_index = begun % math.max(1, pool.size), healthy = pool.present, starved_since = 0,
      first_rest = NEVER, flights = {}, next_starts = NONE, marks = pool.marks, elsewhere = lane.elsewhere,
    }
  end
  return lane.roster
end

function mark_at(roster, index)
  return string.byte(roster.marks, index + 1) or HEALTHY
end

-- Without a start, the exit is due.
function set_next_start(roster, index, start)
  if start and roster.next_starts == NONE then roster.next_starts = {} end
  if start or roster.next_starts[index] then roster.next_starts[index] = start end
end

function set_mark(roster, index, mark)
  local marks, old = roster.marks, mark_at(roster, index)
  if old == mark then return end
  if old == HEALTHY then roster.healthy = roster.healthy - 1 elseif old == HELD then roster.held = roster.held - 1 end
  if mark == HEALTHY then roster.healthy = roster.healthy + 1 elseif mark == HELD then roster.held = (roster.held or 0) + 1 end
  if index >= #marks then
    roster.marks = marks .. string.rep('\0', index - #marks) .. string.char(mark)
  elseif mark == HEALTHY and index == #marks - 1 then
    roster.marks = without_last_zeros(string.sub(marks, 1, index))
  else
    roster.marks = string.sub(marks, 1, index) .. string.char(mark) .. string.sub(marks, index + 2)
  end
end

-- The exit rests until a time.
function rest(lane, index, due)
  call('ZADD', P .. 'rests:' .. lane.name, due, member_of(index))
  lane.roster.first_rest = nil
end

-- End the exit's rest; gives the time until which it should have rested.
function end_rest(lane, index)
  local key, member = P .. 'rests:' .. lane.name, member_of(index)
  local due = call('ZSCORE', key, member)
  call('ZREM', key, member)
  lane.roster.first_rest = nil
  return tonumber(due) or 0
end

-- When the first rest ends; read again after rests have changed.
function first_rest_of(lane)
  local roster = lane.roster
  if not roster.first_rest then
    local _, due = unpack(call('ZRANGE', P .. 'rests:' .. lane.name, 0, 0, 'WITHSCORES'))
    roster.first_rest = tonumber(due) or NEVER
  end
  return roster.first_rest
end

-- End all rests of a lane; gives by member until when each exit rested.
local function end_rests(lane)
  local key, dues = P .. 'rests:' .. lane.name, {}
  local page = call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #page, 2 do dues[page[i]] = tonumber(page[i + 1]) end
  call('DEL', key)
  return dues
end

-- Compute marks and rests anew from the pool, the streaks of its exits and the requests in flight. No exit may be used earlier than
-- before. A lane without marks has neither rests nor streaks, except after a crash that cut a write.
function review_roster(lane, may_be_torn)
  local roster, pool, rests, marks, page, dues = roster_of(lane), lane.pool, {}, {}, {}, {}
  local old_marks = may_be_torn and '' or roster.marks
  if may_be_torn or roster.marks ~= '' then
    page, dues = call('HGETALL', P .. 'uses:' .. lane.name), end_rests(lane)
  end
  roster.size, roster.healthy, roster.held, roster.marks = pool.size, pool.present, nil, pool.marks
  local function is_removed(index)
    return string.byte(pool.marks, index + 1) == REMOVED
  end
  local function mark_and_rest(index, mark, member, due)
    roster.healthy, marks[index] = roster.healthy - 1, string.char(mark)
    if mark == HELD then roster.held = (roster.held or 0) + 1 end
    if mark ~= ON_PROBATION then rests[#rests + 1], rests[#rests + 2] = due, member end
  end
  for member, due in pairs(dues) do
    local index = unpack_struct('>I4', member)
    local mark = string.byte(old_marks, index + 1)
    if (mark == HELD or mark == PARKED) and not is_removed(index) then
      if roster.flights[index] then set_next_start(roster, index, due) else mark_and_rest(index, mark, member, due) end
    end
  end
  for i = 1, #page, 2 do
    local index, streak, rests_until = unpack_struct('>I4', page[i]), unpack_struct('<dd', page[i + 1], STREAK_AT)
    if streak > 0 then
      local before, is_used = dues[page[i]] or roster.next_starts[index] or 0, roster.flights[index]
      local due = before > now and math.max(rests_until, before) or rests_until
      local is_kept = is_used or (is_removed(index) and due > rests_until)
      set_next_start(roster, index, is_kept and due or nil)
      if not is_removed(index) then mark_and_rest(index, is_used and ON_PROBATION or QUARANTINED, page[i], due) end
    end
  end
  if next(marks) then
    local all = {}
    for index = 0, pool.size - 1 do all[index + 1] = marks[index] or string.char(string.byte(pool.marks, index + 1) or 0) end
    roster.marks = without_last_zeros(table.concat(all))
  end
  write_in_parts('ZADD', P .. 'rests:' .. lane.name, rests)
  roster.first_rest, lane.exits_next, lane.exits_changed = nil, 0, false
end
