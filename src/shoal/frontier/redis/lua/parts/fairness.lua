-- gives: share_out
-- How a lease call shares its room among the lanes that may start.

-- twin: rules/lanes.py share_out
function share_out(rooms, limit)
  local given = {}
  for i = 1, #rooms do given[i] = 0 end
  while limit > 0 do
    local hungry = {}
    for i = 1, #rooms do
      if given[i] < rooms[i] then hungry[#hungry + 1] = i end
    end
    if #hungry == 0 then break end
    local share = math.max(1, math.floor(limit / #hungry))
    for _, i in ipairs(hungry) do
      local part = math.min(share, rooms[i] - given[i], limit)
      given[i] = given[i] + part
      limit = limit - part
    end
  end
  return given
end
