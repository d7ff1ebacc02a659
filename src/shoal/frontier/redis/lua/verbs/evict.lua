-- needs: tasks
-- evict: reclaim the leases of a worker that has exited, or leases that a live worker does not know, a bounded number per call.
--
-- ARGV[3]  worker
-- ARGV[4]  cursor, "0" to begin
-- ARGV[5]  the cause of its exit, or ""
-- ARGV[6]  "dead", then the tokens of the leases whose handlers ran when it died; none: not known
--          "alive", then the tokens of the leases that it knows: they stand, the others end as released
-- Reply    {"ok", next cursor, "0" at the end; number of leases reclaimed}
local FIRST_TOKEN = 7
local worker, cause, is_alive, taken, tokens = ARGV[3], ARGV[5], ARGV[6] == 'alive', 0, {}
for i = FIRST_TOKEN, #ARGV do tokens[tonumber(ARGV[i])] = true end
local cursor, page = unpack(call('HSCAN', P .. 'held', ARGV[4], 'COUNT', 100))
for i = 2, #page, 2 do
  local held = read_held(page[i])
  if held.worker == worker and not (is_alive and tokens[held.token]) then
    if is_alive then
      local lane = need_lane(held.lane)
      end_lease(lane, held)
      release(lane, held)
    else
      lose(held, cause, next(tokens) and (tokens[held.token] or false))
    end
    taken = taken + 1
  end
end
save_queues()
save_ended()
save_lanes()
save_counts()
return {'ok', cursor, taken}
