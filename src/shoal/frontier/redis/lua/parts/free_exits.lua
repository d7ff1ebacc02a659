-- needs: rosters exit_rules
-- gives: has_healthy_exit kept_index due_in_ring next_free refresh_exits do_exits_rest
-- Which exits of a lane are free, and when the next one is. Which exit a lane takes: see picking.

-- Whether the lane has a healthy exit, also one that another lane holds.
function has_healthy_exit(roster)
  return roster.healthy + (roster.held or 0) > 0
end

-- The index of the kept exit of a host of a sticky pool, while it is healthy.
function kept_index(lane)
  local roster, pool = lane.roster, lane.pool
  local index = roster.kept_index
  if pool.sticky == 0 or not index or mark_at(roster, index) ~= HEALTHY then return nil end
  local row = has_exit_rows and find_exit(name_at(pool, index))
  return exit_rules.keeps_exit(pool, roster.kept_since, row and row.parked_until or 0) and index or nil
end

-- The next exit in the ring of healthy exits that is free and due, or nil. A whole round without one is not repeated in this call.
-- Exits in `away` are left out; the round is then for this worker alone.
function due_in_ring(roster, cap, away)
  if roster.is_round_done and not away then return nil end
  local marks, flights, next_starts, index, last = roster.marks, roster.flights, roster.next_starts, roster.next_index, roster.size
  local elsewhere = roster.elsewhere
  for _ = 1, 2 do
    while index < last do
      -- HEALTHY is the byte 0.
      if index < #marks then index = (string.find(marks, '\0', index + 1, true) or #marks + 1) - 1 end
      if index >= last then break end
      local flight, start = flights[index], next_starts[index]
      if elsewhere and elsewhere[index] then flight = (flight or 0) + elsewhere[index] end
      if (not flight or flight < cap) and (not start or start <= now) and not (away and away[index]) then return index end
      index = index + 1
    end
    index, last = 0, roster.next_index
  end
  if not away then roster.is_round_done = true end
  return nil
end

-- When the next exit may be used; 0: now.
function next_free(roster, first_rest, cap)
  if first_rest <= now or due_in_ring(roster, cap) then return 0 end
  local flights, soonest = roster.flights, first_rest
  for index, start in pairs(roster.next_starts) do
    if start < soonest and (flights[index] or 0) < cap and mark_at(roster, index) == HEALTHY then soonest = start end
  end
  return soonest
end

-- Note in the lane when its next exit is free.
function refresh_exits(lane)
  local roster, pool = roster_of(lane), pool_of(lane.via)
  lane.exits_changed = false
  -- Other crawls may stop using the exits at any time.
  if roster.elsewhere then roster.elsewhere, roster.is_round_done = nil, nil end
  if not pool.exists then return end
  roster.starved_since = exit_rules.starved_since(roster.starved_since, has_healthy_exit(roster))
  local kept, free_at = pool.sticky ~= 0 and kept_index(lane), NEVER
  if not kept then
    free_at = next_free(roster, roster.first_rest or first_rest_of(lane), pool.cap)
  else
    if (roster.flights[kept] or 0) < pool.cap then free_at = roster.next_starts[kept] or 0 end
    if pool.rotate > 0 then free_at = math.min(free_at, roster.kept_since + pool.rotate) end
  end
  lane.exits_next = exit_rules.look_again_at(free_at, pool, roster.starved_since)
  -- Behind the lanes that have waited longer: this worker must reach those next.
  if lane.was_passed_over and lane.exits_next <= now then lane.exits_next = now end
end

-- Whether all exits of the lane are quarantined or parked.
function do_exits_rest(lane)
  return lane.via and has_begun(lane) and pool_of(lane.via).exists and roster_of(lane).starved_since > 0
end
