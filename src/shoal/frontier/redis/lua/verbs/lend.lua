-- needs: lending
-- lend: the second half of a lease from several crawls or shards: lend a number of tasks of each lane, as far as its pace allows.
--
-- ARGV[3]  worker
-- ARGV[4]  seconds a lease lasts
-- ARGV[5]  horizon in seconds
-- ARGV[6]  "1" if a suspect of the first lane may be lent alone
-- ARGV[7]  the kinds of the tasks (see asked_kinds)
-- ARGV[8]  the exits that the worker offers (see offers)
-- then     lane, number of tasks, … for each lane
-- Reply    as that of lease
local FIRST_LANE = 9
offers.take_in(ARGV[8])
local horizon, reply = tonumber(ARGV[5]), {}
local terms = {worker = ARGV[3], seconds = tonumber(ARGV[4]), latest = now + horizon, kinds = asked_kinds(ARGV[7])}
if crawl.state == 'running' then
  for i = FIRST_LANE, #ARGV, 2 do
    local lane, wanted = need_lane(ARGV[i]), tonumber(ARGV[i + 1])
    local total = math.min(wanted, room_of(lane, terms.kinds, wanted, horizon))
    terms.may_be_alone = i == FIRST_LANE and ARGV[6] == '1'
    if total > 0 and lane.next_start <= now + horizon and lend(lane, total, terms, reply) then break end
  end
end
local has_lent = save_lent()
save_lanes()
save_counts()
local finished = ending()
return {'ok', crawl.epoch, ask_again(terms.kinds, offers.was_passed_over and not has_lent), finished, unpack(reply)}
