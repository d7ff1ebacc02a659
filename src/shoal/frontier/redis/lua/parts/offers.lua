-- needs: server
-- gives: offers
-- Exits that workers offer: each worker has only some of them.
-- was_passed_over: a lane of this call leased nothing because all its due exits belong to other workers
offers = {was_passed_over = false}

local at_hand = {}

-- The exits that the calling worker offers: per pool a line with its name, one per exit, and an empty line.
function offers.take_in(text)
  local exits
  for line in string.gmatch(text or '', '([^\n]*)\n') do
    if line == '' then
      exits = nil
    elseif exits then
      exits[line] = true
    else
      exits = {}
      at_hand[line] = exits
    end
  end
end

-- The offers to a pool: its limits as text, the names of the exits, and by name until when.
function offers.read(text)
  local names, until_when = {}, {}
  local limits, last = string.match(text, '^([^\n]*)\n()')
  for at, name in string.gmatch(string.sub(text, last), '(%S+) ([^\n]*)\n') do
    names[#names + 1], until_when[name] = name, tonumber(at)
  end
  return limits, names, until_when
end

local function find_away(pool)
  local own, names, away = at_hand[pool.name] or {}, {}, {}
  for name in string.gmatch(pool.offered, '([^\n]*)\n') do
    if not own[name] then names[#names + 1] = 'e:' .. name end
  end
  if #names == 0 then return false end
  for at = 1, #names, 1000 do
    local indexes = call('HMGET', P .. 'pool:' .. pool.name, unpack(names, at, math.min(at + 999, #names)))
    for i = 1, #indexes do
      if indexes[i] then away[tonumber(indexes[i])] = true end
    end
  end
  return away
end

-- The indexes of the exits of a pool that only other workers offer; false: none.
function offers.away_from(pool)
  if pool.away == nil then pool.away = pool.offered and pool.offered ~= '' and find_away(pool) end
  return pool.away
end
