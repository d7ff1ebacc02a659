-- needs: server
-- gives: key_rules
-- The rules of keys that expire. rules/keys.py explains them; both must give the same answers.
key_rules = {}

-- twin: rules/keys.py generations_due
function key_rules.generations_due(began, ttl)
  return math.max(0, math.floor((now - began) / (ttl / GENERATIONS_PER_TTL)))
end

-- twin: rules/keys.py generation_begin
function key_rules.generation_begin(began, ttl, due)
  return began + due * (ttl / GENERATIONS_PER_TTL)
end

-- twin: rules/keys.py oldest_known
function key_rules.oldest_known(generation)
  return generation - KEPT_GENERATIONS + 1
end
