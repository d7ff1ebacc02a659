-- needs: tasks
-- evict: reclaim the leases of a worker as if they had expired, a bounded number per call.
--
-- ARGV[3]  worker
-- ARGV[4]  cursor, "0" to begin
-- ARGV[5]  the cause of its end, or ""
-- then     tokens of the leases whose handlers ran then; none: nobody knows
-- Reply    {"ok", next cursor, "0" at the end; number of leases reclaimed}
local FIRST_TOKEN = 6
local worker, cause, taken, suspects = ARGV[3], ARGV[5], 0, {}
for i = FIRST_TOKEN, #ARGV do suspects[tonumber(ARGV[i])] = true end
local cursor, page = unpack(call('HSCAN', P .. 'held', ARGV[4], 'COUNT', 100))
for i = 2, #page, 2 do
  local held = read_held(page[i])
  if held.worker == worker then
    lose(held, cause, next(suspects) and (suspects[held.token] or false))
    taken = taken + 1
  end
end
save_queues()
save_ended()
save_lanes()
save_counts()
return {'ok', cursor, taken}
