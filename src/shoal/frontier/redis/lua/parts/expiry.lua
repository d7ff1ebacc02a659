-- needs: crawl key_rules
-- gives: ttl generation generations_due begin_generations expire_keys past_set kept_generations generation_of
-- gives: count_ended
-- Keys that expire, in crawls with a dedup_ttl (see rules/keys.py). The key of an ended task is known during its generation and the
-- next two; a generation lasts half the ttl. The keys of tasks that have not ended are in `seen`, as in any crawl.
--
-- past:G:N  the keys of tasks that ended in generation G; N as in seen:N
-- turns     generation: the current one; turned: when it began; ended0, ended1, ended2: number of keys of generation G, by
--           G % 3; expired: number of keys expired so far; swept, sweep_at: generation and N of the set to be deleted next
--
-- Each function costs time in every call: in crawls whose keys do not expire, `ttl` and these functions are nil.
ttl = tonumber(crawl.dedup_ttl)
local began, oldest

if ttl then
  local MAX_SWEPT = 200
  local swept, sweep_at, has_expired

  -- How many generations are due after the current one.
  function generations_due()
    return key_rules.generations_due(began, ttl)
  end

  local stored = read_fields('turns', 'generation', 'turned', 'swept', 'sweep_at')
  generation, began = tonumber(stored.generation) or 0, tonumber(stored.turned) or 0
  swept, sweep_at = tonumber(stored.swept) or 0, tonumber(stored.sweep_at) or 0
  oldest = key_rules.oldest_known(generation + math.min(generations_due(), KEPT_GENERATIONS))

  function past_set(number, bucket)
    return P .. 'past:' .. number .. ':' .. bucket
  end

  -- The generations whose keys are kept.
  function kept_generations()
    local kept = {}
    for number = math.max(0, key_rules.oldest_known(generation)), generation do kept[#kept + 1] = number end
    return kept
  end

  -- The generation in which the task of this key ended; nil: the key is not known.
  function generation_of(bucket, key)
    for number = generation, math.max(0, oldest), -1 do
      if call('SISMEMBER', past_set(number, bucket), key) == 1 then return number end
    end
    return nil
  end

  local function ended_field(number)
    return 'ended' .. number % KEPT_GENERATIONS
  end

  -- Adds to the number of keys of a generation; gives the new number.
  function count_ended(number, amount)
    return call('HINCRBY', P .. 'turns', ended_field(number), amount)
  end

  -- One write: after a crash the generation and its counts agree. The new epoch makes workers forget the expired keys.
  function begin_generations(total, at)
    local numbers = read_fields('turns', 'ended0', 'ended1', 'ended2', 'expired')
    local expired = tonumber(numbers.expired) or 0
    for _ = 1, total do
      generation = generation + 1
      local field = ended_field(generation)
      expired = expired + (tonumber(numbers[field]) or 0)
      numbers[field] = 0
    end
    began, oldest = at, key_rules.oldest_known(generation)
    call('HSET', P .. 'turns', 'generation', format('%.0f', generation), 'turned', format('%.17g', at), 'expired',
      format('%.0f', expired), 'ended0', numbers.ended0 or 0, 'ended1', numbers.ended1 or 0, 'ended2', numbers.ended2 or 0)
    crawl.epoch = format('%.0f', call('HINCRBY', P .. 'crawl', 'epoch', 1))
  end

  -- Delete a bounded number of sets of generations that have expired.
  local function sweep()
    if swept >= oldest then return end
    local total, names = tonumber(crawl.buckets), {}
    local last = math.min(sweep_at + MAX_SWEPT, total)
    for bucket = sweep_at, last - 1 do names[#names + 1] = past_set(swept, bucket) end
    if #names > 0 then call('UNLINK', unpack(names)) end
    if last == total then swept, sweep_at = swept + 1, 0 else sweep_at = last end
    call('HSET', P .. 'turns', 'swept', format('%.0f', swept), 'sweep_at', sweep_at)
  end

  -- Begin the generation that is due. Call it before keys are read or tasks end; a second call does nothing.
  function expire_keys()
    if has_expired then return end
    has_expired = true
    local due = generations_due()
    if due > 0 then begin_generations(math.min(due, KEPT_GENERATIONS), key_rules.generation_begin(began, ttl, due)) end
    sweep()
  end
end
