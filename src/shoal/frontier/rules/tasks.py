"""Rules of tasks (tokens, attempts, reasons), limits that stop a crawl, and messages about unreadable records."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from shoal.frontier.rules.constants import MAX_COUNTED, MAX_PRIORITY, SUSPECT_LOSSES, TOKENS_PER_MILLISECOND
from shoal.model import Limit
from shoal.text.errors import several
from shoal.urls.scope import fingerprint

WORKER_LOST: Final = "worker lost"  # the reason of a task whose lease was lost with its worker
BAD_RECORD: Final = "bad record"  # the reason of a dead letter of whose record only the URL could be read
SET_ASIDE: Final = "set aside "  # begins the notes that count unreadable records, by where they were
KNOWN_KEYS: Final = "known keys"  # the note that counts keys known without a task
NO_LEASE: Final = 0  # a token that no lease has: as only suspect, no lease is blamed
DROPPED: Final = "dropped"  # the outcome of dead letters that were dropped
MERGED: Final = "merged"  # the reason of links whose URL was merged with a known one
# The reasons for refused tasks.
MAX_PAGES: Final = "max_pages"
MAX_PER_HOST: Final = "max_per_host"
MAX_PER_SHAPE: Final = "max_per_shape"
TOO_MANY_KINDS: Final = "too_many_kinds"


def bad_record_key(url: str) -> int:
    """The key of the dead letter for the URL of an unreadable record, whose own key is not known."""
    return fingerprint(f"{BAD_RECORD}:{url}")


def next_token(last: int, *, now: float) -> int:
    """The token of the next lease. It contains the clock: tokens rise even if a server lost the latest in a crash."""
    return max(last + 1, int(now * 1000) * TOKENS_PER_MILLISECOND)


def lent_at(token: int) -> float:
    """About when the lease with this token was given, by the frontier's clock."""
    return token / (1000 * TOKENS_PER_MILLISECOND)


def is_last_attempt(attempts: int, max_attempts: int) -> bool:
    """Whether a task dies when this attempt fails."""
    return attempts >= max_attempts


def attempts_after_retry(attempts: int, free_retries: int, max_attempts: int, *, free: bool) -> tuple[int, int] | None:
    """The attempts and free retries of a task that is tried again; None: it has no attempt left and is dead. A free
    retry uses up no attempt."""
    if free:
        return attempts - 1, min(free_retries + 1, MAX_COUNTED)
    return None if is_last_attempt(attempts, max_attempts) else (attempts, free_retries)


def is_suspect(losses: int) -> bool:
    """Whether a task that lost so many leases in a row may kill its workers: it is leased alone."""
    return losses >= SUSPECT_LOSSES


def tries_after_loss(attempts: int, losses: int, max_attempts: int, *, blamed: bool | None) -> tuple[int, int] | None:
    """The attempts and losses of a task whose lease was lost with its worker; None: that was its last attempt.

    `blamed`: whether its handler ran when the worker died; None: not known. A lease lost together with others uses up
    no attempt. A lease given alone does, unless another page is blamed: then the worker died before it began this
    one."""
    if not is_suspect(losses):
        return attempts - 1, max(losses + 1, SUSPECT_LOSSES if blamed else 0)
    if blamed is False:
        return attempts - 1, losses
    return None if is_last_attempt(attempts, max_attempts) else (attempts, min(losses + 1, MAX_COUNTED))


def losses_of_requeued(reason: str) -> int:
    """The losses of a dead letter that is queued again: if it was lost with its worker, it stays a suspect."""
    return SUSPECT_LOSSES if reason.startswith(WORKER_LOST) else 0


def lost_reason(cause: str) -> str:
    """The reason of a task whose lease was lost, with the cause of the worker's death if known."""
    return f"{WORKER_LOST}: {cause}" if cause else WORKER_LOST


def lost_detail(worker: str, *, has_exited: bool) -> str:
    """The detail of a dead letter whose last attempt was lost with its worker."""
    if has_exited:
        return f"the worker {worker} died while it had only this page"
    return f"its lease ended without a word from the worker {worker}, which had only this page"


def outcome_of(reason: str) -> str:
    """The name under which a reason is counted: the part before the colon."""
    return reason.partition(":")[0]


def bounded_priority(priority: int) -> int:
    """The priority, limited to MAX_PRIORITY on both sides."""
    return max(-MAX_PRIORITY, min(priority, MAX_PRIORITY))


def has_spent(cost: float, max_cost: float) -> bool:
    """Whether a crawl has reached its budget of cost; zero: no budget."""
    return max_cost > 0 and cost >= max_cost


_LIMITS = msgspec.json.Decoder(tuple[Limit, ...])


def encoded(limits: Sequence[Limit]) -> str:
    """Limits as frontiers store them; "": none."""
    return msgspec.json.encode(limits).decode() if limits else ""


def decoded(stored: str | bytes) -> tuple[Limit, ...]:
    """Decode stored limits. Raises a msgspec.MsgspecError for anything else."""
    return _LIMITS.decode(stored) if stored else ()


def reached(limits: Sequence[Limit], *, note: Callable[[str], float], ran: float, wall: float) -> Limit | None:
    """The first of these limits that the crawl has reached; None: no limit. `note`: gives the sum of a note."""
    for limit in limits:
        if (note(limit.note) if limit.of == "note" else ran if limit.of == "ran" else wall) >= limit.most:
            return limit
    return None


SPIDER_UNKNOWN: Final = "?"
_NUMBERED = re.compile(r"(.+)-\d+")


def unreadable_crawl(crawl: str, where: object, error: object) -> str:
    """The message about a crawl whose own record cannot be read."""
    reason = " ".join(str(error).split())
    return f"the record of crawl {crawl!r} at {where} cannot be read ({reason}): it is left alone"


def aside_line(crawl: str, places: Mapping[str, int], *, kept: str) -> str:
    """The message about unreadable records that were set aside. `places`: how many, by where they were; `kept`: where
    they are now."""
    where = ", ".join(f"{number} in `{place}`" for place, number in sorted(places.items()) if number)
    return (
        f"{several(sum(places.values()), 'record')} of crawl {crawl} could not be read: set aside ({where}), kept in"
        f" {kept}; `shoal dead list {crawl} --reason '{BAD_RECORD}'` shows the pages among them whose URL could be told"
    )


def spider_in(crawl: str) -> str:
    """The spider's name in the id of a crawl, for a crawl whose record cannot be read."""
    found = _NUMBERED.fullmatch(crawl)
    return found[1] if found else SPIDER_UNKNOWN
