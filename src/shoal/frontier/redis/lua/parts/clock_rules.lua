-- needs: server
-- gives: clock_rules
-- The rules of a crawl's time. rules/crawl_time.py says what they mean; both must give the same answers.
clock_rules = {}

-- Gives the crawl's time and the shift.
-- twin: rules/crawl_time.py reckon
function clock_rules.reckon(clock, last, shift, expected)
  local time = clock + shift
  local is_ahead = expected and time > expected.time + expected.way + STEP_SECONDS
  if not is_ahead and time >= last then return time, shift end
  local earliest = expected and expected.shift == shift and expected.time or last
  time = math.max(last, is_ahead and earliest or math.min(earliest, last + CLOCK_SECONDS))
  return time, time - clock
end

-- twin: rules/crawl_time.py is_noted
function clock_rules.is_noted(time, last)
  return time >= last + CLOCK_SECONDS
end

-- twin: rules/crawl_time.py ran_since
function clock_rules.ran_since(time, last)
  if last > 0 and last <= time and time <= last + LONGEST_BREAK then return time - last end
  return 0
end

-- twin: rules/crawl_time.py was_away
function clock_rules.was_away(time, last, expected, seconds)
  return expected ~= nil and last > 0 and time - last > seconds / AWAY_SHARE + CLOCK_SECONDS
end
