-- needs: crawl
-- gives: note_presence
-- A worker is there: it asks for leases or renews them. The crawl's latest time is noted, about once a second.

-- Leases of so many seconds that ended while nobody could reach the server last once more: their workers renew them. A lease that
-- ended before that is lost as ever. Gives whether the time was noted.
function note_presence(seconds)
  local last = crawl.clock_last
  if clock_rules.was_away(now, last, expected, seconds) then
    local changes = {}
    for _, key in ipairs(call('ZRANGEBYSCORE', P .. 'leases', '(' .. format('%.17g', last), format('%.17g', now + seconds))) do
      changes[#changes + 1] = now + seconds
      changes[#changes + 1] = key
    end
    write_in_parts('ZADD', P .. 'leases', changes)
  end
  local is_noted = clock_rules.is_noted(now, last)
  if is_noted then
    local ran = crawl.state == 'running' and clock_rules.ran_since(now, last) or 0
    crawl.ran = crawl.ran + ran
    call('HSET', P .. 'crawl', 'clock_last', format('%.17g', now), 'ran', format('%.17g', crawl.ran))
  end
  return is_noted
end
