-- The outbox: found tasks of other shards, and those that need an allowance first, written in the same step as the
-- settle that found them. They leave it when they are where they belong: until then they are work left.
--
-- outbox  number (8 bytes), time (8 bytes), length of the lane (2 bytes), lane, task → number

-- Before save_ended: a link may be in the outbox of a page that is still leased, never in neither.
-- Gives the last number; those of one call follow each other.
local function save_outbox()
  if #passed_entries == 0 then return 0 end
  local last = call('HINCRBY', P .. 'count', 'posted', #passed_entries)
  local first, entries = last - #passed_entries, {}
  for i, entry in ipairs(passed_entries) do
    entries[2 * i - 1] = first + i
    entries[2 * i] = pack('>dd', first + i, now) .. entry
  end
  for i = 1, #entries, 1000 do call('ZADD', P .. 'outbox', unpack(entries, i, math.min(i + 999, #entries))) end
  return last
end
