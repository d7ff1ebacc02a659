-- Dead letters leave: dropped for good, or unburied to wait again.
local function unbury(key, letter)
  count('dead', -1)
  tally('outcomes', outcome_of(letter.reason), -1)
  call('HDEL', P .. 'dead', key)
  call('ZREM', P .. 'graves', grave_of(letter.order, key))
end

-- The letter counts as done from here on.
local function drop(key, letter)
  unbury(key, letter)
  count('done', 1)
  tally('outcomes', 'dropped', 1)
end
