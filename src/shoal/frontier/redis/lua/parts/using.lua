-- Using exits: when a lane may start again as far as its exits go. Which one it takes: see picking; how they did: see judging.

-- The place of the exit that a host of a sticky pool keeps, while it is healthy.
local function stuck_place(lane)
  local roster, pool = lane.roster, lane.roll
  local place = roster.stuck
  if pool.sticky == 0 or not place or mark_at(roster, place) ~= MARK.RING then return nil end
  if pool.rotate > 0 and now >= roster.stuck_since + pool.rotate then return nil end
  local row = has_rows and find_exit(name_at(pool, place))
  return (not row or row.parked <= now) and place or nil
end

-- The next one in the ring that is free and due, or nil. A whole round that found none is not made again in this call.
local function due_place(roster, cap)
  if roster.is_round_done then return nil end
  local marks, flights, nexts, place, last = roster.marks, roster.flights, roster.nexts, roster.place, roster.size
  for _ = 1, 2 do
    while place < last do
      if place < #marks then place = (string.find(marks, '\0', place + 1, true) or #marks + 1) - 1 end
      if place >= last then break end
      local flight, next = flights[place], nexts[place]
      if (not flight or flight < cap) and (not next or next <= now) then return place end
      place = place + 1
    end
    place, last = 0, roster.place
  end
  roster.is_round_done = true
  return nil
end

-- Say on the lane when an exit is free next.
local function refresh_exits(lane)
  local roster, pool = roster_of(lane), lane.roll
  local flights, nexts, cap = roster.flights, roster.nexts, pool.cap
  lane.looks = false
  if not pool.exists then return end
  if roster.ring + (roster.off or 0) > 0 then
    roster.starved = 0
  elseif roster.starved == 0 then
    roster.starved = now
  end
  local stuck, soonest = pool.sticky ~= 0 and stuck_place(lane), roster.first_rest or first_rest_of(lane)
  if stuck then
    soonest = (flights[stuck] or 0) < cap and (nexts[stuck] or 0) or NEVER
    if pool.rotate > 0 then soonest = math.min(soonest, roster.stuck_since + pool.rotate) end
  elseif soonest > now and not due_place(roster, cap) then
    for place, next in pairs(nexts) do
      if next < soonest and (flights[place] or 0) < cap and mark_at(roster, place) == MARK.RING then soonest = next end
    end
  else
    soonest = 0
  end
  if soonest <= now then soonest = 0 end
  lane.exits = roster.starved > 0 and math.min(soonest, roster.starved + pool.patience) or soonest
end

-- Whether all exits of the lane were turned away or failed.
local function do_exits_rest(lane)
  return lane.via and has_begun(lane) and roll_of(lane.via).exists and roster_of(lane).starved > 0
end
