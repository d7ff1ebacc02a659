-- needs: server
-- gives: clock_rules
-- The rules of a crawl's time. rules/crawl_time.py says what they mean; both must give the same answers.
clock_rules = {}

-- Gives the crawl's time and the shift.
-- twin: rules/crawl_time.py reckon
function clock_rules.reckon(clock, last, shift, expected)
  local time = clock + shift
  if expected and time > expected.time + expected.way + STEP_SECONDS then
    time = math.max(last, expected.time)
  elseif time < last then
    time = expected and math.max(last, math.min(expected.time, last + CLOCK_SECONDS)) or last
  else
    return time, shift
  end
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
