-- needs: crawl
-- gives: note_presence
-- Note, about once a second, that a worker asks for leases or renews them; gives whether the time was written.

-- Leases that ended while no worker could reach the server get their time once more, for their workers to renew them. Leases that
-- ended before that are lost.
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
