-- needs: ready lending
-- lend: the second half of a lease from several crawls or shards: lease a number of tasks of each lane, as far as its pace allows.
--
-- ARGV[3]  worker
-- ARGV[4]  seconds a lease lasts
-- ARGV[5]  horizon in seconds
-- ARGV[6]  "1" if a suspect of the first lane may be leased alone
-- ARGV[7]  the kinds of the tasks (see asked_kinds)
-- ARGV[8]  the exits that the worker offers (see offers)
-- ARGV[9]  "1" if the worker gets as many leases as it has room for
-- then     lane, number of tasks, … for each lane
-- Reply    as in lease
local FIRST_LANE = 10
offers.take_in(ARGV[8])
crawl.lease_seconds = tonumber(ARGV[4])
local horizon, reply, asked = tonumber(ARGV[5]), {}, {}
local terms = {worker = ARGV[3], seconds = tonumber(ARGV[4]), latest = now + horizon, kinds = asked_kinds(ARGV[7])}
if crawl.state == 'running' then
  for i = FIRST_LANE, #ARGV, 2 do
    local lane, wanted, total = need_lane(ARGV[i]), tonumber(ARGV[i + 1]), 0
    asked[#asked + 1] = lane
    if lane.sharing == SHARED or (lane.sharing == ALONE and lane_rules.needs_opening(lane)) then hosts.look(lane) end
    if not (lane.limits and hosts.hold_back(lane, horizon)) then total = math.min(wanted, room_of(lane, terms.kinds, wanted, horizon)) end
    terms.may_be_alone = i == FIRST_LANE and ARGV[6] == '1'
    if total > 0 and lane.next_start <= now + horizon and lend(lane, total, terms, reply) then break end
  end
end
local lent = save_lent()
note_wishes(asked, ARGV[9] == '1')
save_lanes()
save_counts()
local finished = ending()
return {'ok', crawl.epoch, ask_again(terms.kinds, offers.was_passed_over and lent == 0), finished, unpack(reply)}
