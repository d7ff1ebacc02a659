-- needs: server
-- gives: task_rules
-- The rules of tasks: tokens, attempts, reasons. rules/tasks.py says what they mean; both must give the same answers.
task_rules = {}

-- twin: rules/tasks.py next_token
function task_rules.next_token(last)
  return math.max(last + 1, math.floor(now * 1000) * TOKENS_PER_MILLISECOND)
end

-- twin: rules/tasks.py is_last_attempt
function task_rules.is_last_attempt(attempts, max_attempts)
  return attempts >= max_attempts
end

-- Gives attempts and free retries; nil when the task is dead.
-- twin: rules/tasks.py attempts_after_retry
function task_rules.attempts_after_retry(attempts, free_retries, max_attempts, is_free)
  if is_free then return attempts - 1, free_retries + 1 end
  if task_rules.is_last_attempt(attempts, max_attempts) then return nil end
  return attempts, free_retries
end

-- twin: rules/tasks.py outcome_of
function task_rules.outcome_of(reason)
  return (string.gsub(reason, ':.*$', ''))
end

-- twin: rules/tasks.py has_spent
function task_rules.has_spent(cost, max_cost)
  return max_cost > 0 and cost >= max_cost
end
