-- needs: tasks
-- evict: reclaim the leases of a worker as if they had expired, a bounded number per call.
--
-- ARGV[3]  worker
-- ARGV[4]  cursor, "0" to begin
-- Reply    {"ok", next cursor, "0" at the end; number of leases reclaimed}
local worker, taken = ARGV[3], 0
local cursor, page = unpack(call('HSCAN', P .. 'held', ARGV[4], 'COUNT', 100))
for i = 2, #page, 2 do
  local held = read_held(page[i])
  if held.worker == worker then
    lose(held)
    taken = taken + 1
  end
end
save_queues()
save_ended()
save_lanes()
save_counts()
return {'ok', cursor, taken}
