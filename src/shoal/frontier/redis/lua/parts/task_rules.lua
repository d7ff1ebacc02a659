-- needs: server
-- gives: task_rules
-- The rules of tasks: tokens, attempts, reasons. rules/tasks.py explains them; both must give the same answers.
task_rules = {}

-- twin: rules/tasks.py next_token
function task_rules.next_token(last)
  return math.max(last + 1, math.floor(now * 1000) * TOKENS_PER_MILLISECOND)
end

-- twin: rules/tasks.py is_last_attempt
function task_rules.is_last_attempt(attempts, max_attempts)
  return attempts >= max_attempts
end

-- Gives attempts and free retries; nil: the task is dead.
-- twin: rules/tasks.py attempts_after_retry
function task_rules.attempts_after_retry(attempts, free_retries, max_attempts, is_free)
  if is_free then return attempts - 1, math.min(free_retries + 1, MAX_COUNTED) end
  if task_rules.is_last_attempt(attempts, max_attempts) then return nil end
  return attempts, free_retries
end

-- twin: rules/tasks.py is_suspect
function task_rules.is_suspect(losses)
  return losses >= SUSPECT_LOSSES
end

-- Gives attempts and losses; nil: the task is dead. is_blamed: nil if it is not known whose handlers ran.
-- twin: rules/tasks.py tries_after_loss
function task_rules.tries_after_loss(attempts, losses, max_attempts, is_blamed)
  if not task_rules.is_suspect(losses) then return attempts - 1, math.max(losses + 1, is_blamed and SUSPECT_LOSSES or 0) end
  if is_blamed == false then return attempts - 1, losses end
  if task_rules.is_last_attempt(attempts, max_attempts) then return nil end
  return attempts, math.min(losses + 1, MAX_COUNTED)
end

-- twin: rules/tasks.py losses_of_requeued
function task_rules.losses_of_requeued(reason)
  return string.sub(reason, 1, #WORKER_LOST) == WORKER_LOST and SUSPECT_LOSSES or 0
end

-- twin: rules/tasks.py lost_reason
function task_rules.lost_reason(cause)
  return cause ~= '' and WORKER_LOST .. ': ' .. cause or WORKER_LOST
end

-- twin: rules/tasks.py lost_detail
function task_rules.lost_detail(worker, has_exited)
  if has_exited then return 'the worker ' .. worker .. ' died while it had only this page' end
  return 'its lease ended without a word from the worker ' .. worker .. ', which had only this page'
end

-- twin: rules/tasks.py outcome_of
function task_rules.outcome_of(reason)
  return (string.gsub(reason, ':.*$', ''))
end

-- twin: rules/tasks.py has_spent
function task_rules.has_spent(cost, max_cost)
  return max_cost > 0 and cost >= max_cost
end
