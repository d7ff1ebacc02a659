-- include: crawl exits rosters using judging lanes tasks
-- evict: take back what a worker holds, as if its leases had expired, in bounded steps.
--
-- ARGV[3]  worker
-- ARGV[4]  cursor, "0" to begin
-- Reply    {"ok", next cursor, "0" at the end; number taken back}
local page = call('HSCAN', P .. 'held', ARGV[4], 'COUNT', 100)
local taken = 0
for i = 2, #page[2], 2 do
  local held = read_held(page[2][i])
  if held.worker == ARGV[3] then
    lose(held)
    taken = taken + 1
  end
end
save_queues()
save_ended()
save_lanes()
save_counts()
return {'ok', page[1], taken}
