-- needs: tasks
-- state: pause, resume, cancel or stop a crawl. A finished crawl stays finished.
-- Cancelling moves no task: waiting tasks are counted as cancelled instead.
--
-- ARGV[3]  the new state
-- ARGV[4]  "1" after the lanes were walked, which leaving the cancelled state needs (see walk)
-- ARGV[5]  "1": a finished shard takes the new state, too, as its crawl may not be finished
-- ARGV[6]  the reason, for people
-- ARGV[7]  "1": change only a running or finished shard
-- Reply    {"ok"}, {"walk", now}: walk the lanes first, {"again"}: repeat the call
local state, has_walked, may_leave_finished = ARGV[3], ARGV[4] == '1', ARGV[5] == '1'
if crawl.state == 'finished' and not may_leave_finished or crawl.state == state then return {'ok'} end
if ARGV[7] == '1' and crawl.state ~= 'running' and crawl.state ~= 'finished' then return {'ok'} end
note_move()

if is_cancelled then
  if not has_walked then return {'walk', format('%.17g', now)} end
  local due = call('ZRANGEBYSCORE', P .. 'later', '-inf', now, 'LIMIT', 0, MAX_WOKEN)
  for _, entry in ipairs(due) do
    local order, name, task = read_later(entry)
    count('cancelled', -1)
    local kind = kind_names and kind_of(task)
    if kind then count_kind(kind, -1) end
    wait(need_lane(name), order, task, 0, kind)
  end
  save_queues()
  if #due > 0 then call('ZREM', P .. 'later', unpack(due)) end
  save_lanes()
  save_counts()
  if #due == MAX_WOKEN then return {'again'} end
  local cancelled, delayed = tonumber(call('HGET', P .. 'count', 'cancelled') or 0), call('ZCARD', P .. 'later')
  call('HSET', P .. 'count', 'queued', format('%.0f', cancelled - delayed), 'delayed', delayed, 'cancelled', 0)
end
if state == 'cancelled' then
  local total = sum_of_counts('queued', 'delayed', 'cancelled')
  call('HSET', P .. 'count', 'queued', 0, 'delayed', 0, 'cancelled', format('%.0f', total))
end
if state == 'cancelled' or state == 'stopped' then
  call('HSET', P .. 'crawl', 'finished', wall)
else
  call('HDEL', P .. 'crawl', 'finished')
end
call('HSET', P .. 'crawl', 'state', state, 'reason', ARGV[6])
-- `ran` must not count the time before. If tasks are leased, the latest time stays: note_presence needs it.
if state == 'running' and call('EXISTS', P .. 'leases') == 0 then call('HSET', P .. 'crawl', 'clock_last', format('%.17g', now)) end
return {'ok'}
