-- Keys that expire, in crawls with a dedup_ttl. A key whose task ended is known through its generation and the next two. A
-- generation lasts half the ttl: so a key stays known for at least the whole of it and at most one and a half times as
-- long, and expiry never looks at single keys. The keys of tasks that have not ended are in `seen`, as in any crawl.
--
-- past:G:N  the keys that ended in generation G; N as in seen:N
-- turns     generation: the current one; turned: when it began; ended0, ended1, ended2: keys of generation G, by G % 3;
--           expired: keys forgotten since; swept, sweep_at: generation and N of the set to be deleted next
--
-- A script pays for every function it defines: where keys do not expire, `ttl` is nil and so are these.
local ttl = tonumber(record[11])
local generation, turned, oldest
local turns_due, begin_generation, turn, past_set, generations, generation_of, count_ended

if ttl then
  local KEPT, MAX_SWEPT = 3, 200
  local swept, sweep_at, has_turned

  -- How many generations should have begun since the current one did.
  function turns_due()
    return math.max(0, math.floor((now - turned) / (ttl / 2)))
  end

  local stored = call('HMGET', P .. 'turns', 'generation', 'turned', 'swept', 'sweep_at')
  generation, turned = tonumber(stored[1]) or 0, tonumber(stored[2]) or 0
  swept, sweep_at = tonumber(stored[3]) or 0, tonumber(stored[4]) or 0
  oldest = generation + math.min(turns_due(), KEPT) - KEPT + 1

  function past_set(number, place)
    return P .. 'past:' .. number .. ':' .. place
  end

  -- The generations whose keys are kept.
  function generations()
    local kept = {}
    for number = math.max(0, generation - KEPT + 1), generation do kept[#kept + 1] = number end
    return kept
  end

  -- The generation in which a key of this place ended, or nil when it is not known.
  function generation_of(place, key)
    for number = generation, math.max(0, oldest), -1 do
      if call('SISMEMBER', past_set(number, place), key) == 1 then return number end
    end
    return nil
  end

  -- So many keys more in a generation; gives how many it has.
  function count_ended(number, amount)
    return call('HINCRBY', P .. 'turns', 'ended' .. number % KEPT, amount)
  end

  -- One write: after a crash the generation and its counts agree. Workers learn by the epoch that they must forget as well.
  function begin_generation(turns, at)
    local numbers = call('HMGET', P .. 'turns', 'ended0', 'ended1', 'ended2', 'expired')
    local expired = tonumber(numbers[4]) or 0
    for _ = 1, turns do
      generation = generation + 1
      local slot = generation % KEPT + 1
      expired = expired + (tonumber(numbers[slot]) or 0)
      numbers[slot] = 0
    end
    turned, oldest = at, generation - KEPT + 1
    call('HSET', P .. 'turns', 'generation', format('%.0f', generation), 'turned', format('%.17g', at), 'expired',
      format('%.0f', expired), 'ended0', numbers[1] or 0, 'ended1', numbers[2] or 0, 'ended2', numbers[3] or 0)
    crawl.epoch = format('%.0f', call('HINCRBY', P .. 'crawl', 'epoch', 1))
  end

  -- Delete a few sets of generations that have expired.
  local function sweep()
    if swept >= oldest then return end
    local total, names = tonumber(call('HGET', P .. 'crawl', 'buckets')), {}
    local last = math.min(sweep_at + MAX_SWEPT, total)
    for place = sweep_at, last - 1 do names[#names + 1] = past_set(swept, place) end
    if #names > 0 then call('UNLINK', unpack(names)) end
    if last == total then swept, sweep_at = swept + 1, 0 else sweep_at = last end
    call('HSET', P .. 'turns', 'swept', format('%.0f', swept), 'sweep_at', sweep_at)
  end

  -- Begin the generation that is due. Call it before a key is looked for or a task ends; a second time it does nothing.
  function turn()
    if has_turned then return end
    has_turned = true
    local due = turns_due()
    if due > 0 then begin_generation(math.min(due, KEPT), turned + due * (ttl / 2)) end
    sweep()
  end
end
