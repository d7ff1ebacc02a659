-- needs: server
-- gives: FIXED_NAMES kinds_of_record remove_key_sets
-- The keys under a crawl's prefix besides those of its lanes: for scripts that process all of them.
--
-- The record is the last one: while it exists, the rest can be found.
FIXED_NAMES = {
  'ready', 'busy', 'later', 'visits', 'held', 'leases', 'tries', 'dead', 'graves', 'count', 'turns', 'outcomes', 'rejected', 'notes', 'samples',
  'rules', 'whys', 'shared', 'repair', 'bad', 'feeders', 'outbox', 'sent', 'grants', 'turns:via', 'exits', 'sessions', 'pools', 'offers', 'points', 'points:long', 'crawl',
}

-- The kinds of the crawl's tasks besides http.
function kinds_of_record()
  local kinds = {}
  for kind in string.gmatch(call('HGET', P .. 'crawl', 'kinds') or '', '[^,]+') do kinds[#kinds + 1] = kind end
  return kinds
end

-- Delete a bounded number of sets of keys, from the last one; gives whether more are left.
function remove_key_sets()
  local MAX_SETS = 500
  local crawl = read_fields('crawl', 'buckets', 'filters')
  local buckets = tonumber(crawl.buckets) or 0
  if buckets > 0 then
    local kept = read_fields('turns', 'swept', 'generation')
    local swept, generation = tonumber(kept.swept) or 0, tonumber(kept.generation) or -1
    local last = math.max(0, buckets - math.max(1, math.floor(MAX_SETS / (generation - swept + 2))))
    for bucket = last, buckets - 1 do
      call('UNLINK', P .. 'seen:' .. bucket)
      for number = swept, generation do call('UNLINK', P .. 'past:' .. number .. ':' .. bucket) end
    end
    call('HSET', P .. 'crawl', 'buckets', last)
    if last > 0 then return true end
  end
  for number = 1, tonumber(crawl.filters) or 1 do call('UNLINK', P .. 'bloom:' .. number) end
  return false
end
