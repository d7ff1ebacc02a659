-- needs: server
-- gives: ENTRY save_outbox is_left_behind
-- The outbox: found tasks of other shards, and tasks that need an allowance first, written by the settle that found them. They leave
-- it when they are in their shard; until then they count as queued.
--
-- outbox  number (8 bytes), time (8 bytes), length of the lane (2 bytes), lane, task → number
-- sent    entry of the outbox → when it was delivered
ENTRY = '>dd'
local LEFT_BEHIND_SECONDS = 2

-- Call it before save_ended: after a crash a page may still be leased with its links in the outbox, but never be done without them.
-- An entry is lane and task. Gives the last number; the numbers of one call are consecutive.
function save_outbox(posted)
  if #posted == 0 then return 0 end
  local last = call('HINCRBY', P .. 'count', 'posted', #posted)
  local first, values = last - #posted, {}
  for i, entry in ipairs(posted) do
    values[2 * i - 1] = first + i
    values[2 * i] = pack(ENTRY, first + i, now) .. entry
  end
  write_in_parts('ZADD', P .. 'outbox', values)
  return last
end

-- Whether another worker must deliver this entry: the worker that wrote it would have done so by now.
function is_left_behind(entry)
  local _, posted_at = unpack_struct(ENTRY, entry)
  return posted_at <= now - LEFT_BEHIND_SECONDS
end
