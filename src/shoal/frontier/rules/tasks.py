"""What happens to a task: its token, its attempts, and the reasons under which it is counted."""

from __future__ import annotations

from typing import Final

from shoal.frontier.rules.constants import MAX_PRIORITY, TOKENS_PER_MILLISECOND

WORKER_LOST: Final = "worker lost"  # the reason of a task whose last attempt ended with its worker
BAD_RECORD: Final = "bad record"  # the reason of a dead letter whose record could not be read, but for its URL
SET_ASIDE: Final = "set aside "  # begins the notes that count records which could not be read, by where they were
DROPPED: Final = "dropped"  # the outcome of dead letters that were dropped
MERGED: Final = "merged"  # the reason of links whose URL was merged with a known one
# The reasons of tasks that a budget keeps out.
MAX_PAGES: Final = "max_pages"
MAX_PER_HOST: Final = "max_per_host"
MAX_PER_SHAPE: Final = "max_per_shape"


def next_token(last: int, *, now: float) -> int:
    """The token of the next lease. The clock is in it: tokens rise even if a server lost its last ones in a crash."""
    return max(last + 1, int(now * 1000) * TOKENS_PER_MILLISECOND)


def is_last_attempt(attempts: int, max_attempts: int) -> bool:
    """Whether a task that fails or loses its worker in this attempt is dead."""
    return attempts >= max_attempts


def attempts_after_retry(attempts: int, free_retries: int, max_attempts: int, *, free: bool) -> tuple[int, int] | None:
    """The attempts and free retries of a task that is to be tried again; None when it has no attempt left and is dead.
    A free retry does not use the attempt up."""
    if free:
        return attempts - 1, free_retries + 1
    return None if is_last_attempt(attempts, max_attempts) else (attempts, free_retries)


def outcome_of(reason: str) -> str:
    """The name under which a reason is counted: the part before the colon."""
    return reason.partition(":")[0]


def bounded_priority(priority: int) -> int:
    """The priority as it counts."""
    return max(-MAX_PRIORITY, min(priority, MAX_PRIORITY))


def has_spent(cost: float, max_cost: float) -> bool:
    """Whether a crawl has reached its budget of cost; zero: no budget."""
    return max_cost > 0 and cost >= max_cost
