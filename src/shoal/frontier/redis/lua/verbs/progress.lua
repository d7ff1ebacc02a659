-- needs: crawl
-- progress: all counters of a crawl, read in one step.
--
-- Reply  {"ok", state, feeding ("1"), epoch, {counter, value, …}, {outcome, value, …}, {rejection, value, …},
--        number of links in the outbox, cost, {note, value, …}, reason of the state, number of lost feeders, the kinds of its tasks
--        besides http, separated by commas, seconds until the first delayed task is due ("": none), seconds in which it was running
--        and had workers}
--
-- count     counter → value: a counter per state of tasks, and more (see count)
-- outcomes  outcome → number of tasks
-- rejected  reason → number of links
-- notes     note → count
-- later     (see task_records)
local first = call('ZRANGE', P .. 'later', 0, 0, 'WITHSCORES')[2]
return {
  'ok', crawl.state, is_fed() and '1' or '0', crawl.epoch, call('HGETALL', P .. 'count'),
  call('HGETALL', P .. 'outcomes'), call('HGETALL', P .. 'rejected'), is_sharded and call('ZCARD', P .. 'outbox') or 0,
  format('%.17g', crawl.cost), call('HGETALL', P .. 'notes'), call('HGET', P .. 'crawl', 'reason') or '',
  #feeders_over(false, now), table.concat(kind_names or {}, ','),
  first and exact(math.max(0, first - now)) or '', exact(crawl.ran),
}
