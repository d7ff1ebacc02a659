-- needs: expiry presence upkeep fairness ready lending
-- lease: lease up to a limit of tasks whose lanes may start within the horizon, in fair shares. Before that, reclaims expired leases
-- and queues delayed tasks that are due, a bounded number of each.
--
-- ARGV[3]  limit
-- ARGV[4]  worker
-- ARGV[5]  seconds a lease lasts
-- ARGV[6]  horizon in seconds
-- ARGV[7]  "1" if a suspect may be leased alone: this call has leased nothing so far
-- ARGV[8]  the kinds of the tasks (see asked_kinds)
-- ARGV[9]  the exits that the worker offers (see offers)
-- ARGV[10] how many leases the worker still has room for: this call may be one of several
-- Reply    {"ok", epoch, ask again in seconds and the crawl's time (see ask_again), finished (see ending), eight values for each lane
--          (see lend)}
offers.take_in(ARGV[9])
crawl.lease_seconds = tonumber(ARGV[5])
local limit, horizon = tonumber(ARGV[3]), tonumber(ARGV[6])
local terms = {worker = ARGV[4], seconds = tonumber(ARGV[5]), latest = now + horizon, kinds = asked_kinds(ARGV[8])}
if ttl then expire_keys() end
if note_presence(terms.seconds) then bring_back_lanes() end
reclaim_expired()
wake_due()
save_lanes()
stop_if_reached()
pause_if_spent()
lanes, lane_list = {}, {}

local chosen, held = choose_lanes(terms.kinds, limit, horizon)
local rooms, reply = {}, {}
for i = 1, #chosen do rooms[i] = room_of(chosen[i], terms.kinds, limit, horizon) end
local given = share_out(rooms, limit)
for i = 1, #chosen do
  terms.may_be_alone = i == 1 and ARGV[7] == '1'
  if given[i] > 0 and lend(chosen[i], given[i], terms, reply) then break end
end
local lent = save_lent()
note_wishes(chosen, lent >= tonumber(ARGV[10]))
note_wishes(held, lent >= tonumber(ARGV[10]))
save_lanes()
save_counts()
local finished = ending()
return {'ok', crawl.epoch, ask_again(terms.kinds, offers.was_passed_over and lent == 0), finished, unpack(reply)}
