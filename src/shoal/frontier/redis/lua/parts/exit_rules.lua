-- needs: server
-- gives: exit_rules
-- lazy
-- The rules of exits: quarantine, probation, parking, patience, cost. rules/exits.py explains them; both must give the same
-- answers. `pool` is a table with the pool's limits.
exit_rules = {}

-- twin: rules/exits.py rest_seconds
function exit_rules.rest_seconds(pool, failures)
  return math.min(pool.quarantine * 2 ^ math.min(failures - 1, MAX_DOUBLINGS), pool.max_quarantine)
end

-- Gives the streak, and the end of the rest.
-- twin: rules/exits.py quarantine_after
function exit_rules.quarantine_after(streak, rests_until, pool)
  if streak > 0 and now < rests_until then return streak, rests_until end
  return streak + 1, now + exit_rules.rest_seconds(pool, streak + 1)
end

-- Changes the exit's row.
-- twin: rules/exits.py parking_after
function exit_rules.parking_after(row, pool, lane, token)
  if row.struck_lane ~= lane then row.strikes, row.struck_lane = row.strikes + 1, lane end
  if row.strikes >= STRIKES and (row.parked_until <= now or row.trial == token) then
    row.parkings = row.parkings + 1
    row.parked_until, row.trial = now + exit_rules.rest_seconds(pool, row.parkings), 0
  end
end

-- Changes the exit's row; gives whether it did.
-- twin: rules/exits.py parking_on_trial
function exit_rules.parking_on_trial(row, pool, token)
  if row.strikes < STRIKES then return false end
  row.parked_until, row.trial = now + pool.quarantine, token
  return true
end

-- Gives the mark, PARKED or HELD, and until when; nil: the exit may be used.
-- twin: rules/exits.py put_off
function exit_rules.put_off(parked_until, is_held, next_start)
  if parked_until > math.max(now, next_start) then return PARKED, parked_until end
  if is_held then return HELD, math.max(next_start, now + BUSY_SECONDS) end
  return nil
end

-- twin: rules/exits.py keeps_exit
function exit_rules.keeps_exit(pool, since, parked_until)
  local is_old = pool.rotate > 0 and now >= since + pool.rotate
  return not is_old and parked_until <= now
end

-- twin: rules/exits.py starved_since
function exit_rules.starved_since(before, has_healthy)
  if has_healthy then return 0 end
  return before > 0 and before or now
end

-- twin: rules/exits.py is_out_of_patience
function exit_rules.is_out_of_patience(starved_since, pool)
  return starved_since > 0 and now >= starved_since + pool.patience
end

-- twin: rules/exits.py look_again_at
function exit_rules.look_again_at(free_at, pool, starved_since)
  if free_at <= now then free_at = 0 end
  return starved_since > 0 and math.min(free_at, starved_since + pool.patience) or free_at
end

-- `first_rest` is a function: reading it costs a call.
-- twin: rules/exits.py gives_up
function exit_rules.gives_up(pool, starved_since, has_healthy, first_rest)
  if not pool.exists then return true end
  if has_healthy or not exit_rules.is_out_of_patience(starved_since, pool) then return false end
  return first_rest() >= starved_since + pool.patience
end

-- The reason of tasks given up; `via` is the lane's pool.
-- twin: rules/exits.py no_exit_reason
function exit_rules.no_exit_reason(via, is_known)
  return NO_EXIT .. (is_known and ': every exit of pool ' .. via .. ' rests' or ': there is no pool ' .. via)
end

-- twin: rules/exits.py cost_of
function exit_rules.cost_of(pool, verdict, size)
  if not pool.exists or verdict == 'unused' then return 0 end
  return pool.cost + size / BYTES_PER_GB * pool.cost_per_gb
end
