-- needs: upkeep
-- lapse: end leases of this crawl that have been over for a while, a bounded number: those of another crawl ask for it, which its
-- requests in flight hold back. Its own workers had time to come back.
--
-- ARGV[3]  for how many seconds
-- Reply    {"ok", number of leases ended}
local ended_now = reclaim_expired(tonumber(ARGV[3]))
save_lanes()
save_counts()
return {'ok', ended_now}
