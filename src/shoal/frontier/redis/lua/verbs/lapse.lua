-- needs: upkeep
-- lapse: reclaim leases of this crawl that expired a while ago, a bounded number per call. For workers of another crawl, which the
-- requests in flight of this one hold back; its own workers had time to reclaim them.
--
-- ARGV[3]  how many seconds ago at least they expired
-- Reply    {"ok", number of leases ended}
local ended_now = reclaim_expired(tonumber(ARGV[3]))
save_lanes()
save_counts()
return {'ok', ended_now}
