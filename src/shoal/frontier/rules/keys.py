"""Keys of tasks: how people read and type them, how they expire, and the errors for crawls whose keys were dropped.

A generation lasts half a `dedup_ttl`, and its keys are known during it and the next two: so a key stays known for at
least the whole `dedup_ttl` after its task has ended and at most one and a half times as long, and expiry never examines
single keys.
"""

from __future__ import annotations

import math

from shoal.errors import UsageError
from shoal.frontier.rules.constants import GENERATIONS_PER_TTL, KEPT_GENERATIONS

KEYS = 1 << 64


def key_shown(key: int) -> str:
    """The key of a task as people see it: 16 hexadecimal digits."""
    return f"{key % KEYS:016x}"


def key_given(text: str) -> int:
    """The key of a task that a person has typed. Raises UsageError if it is none."""
    try:
        number = int(text, 16)
    except ValueError:
        number = -1
    if not 0 <= number < KEYS:
        raise UsageError(f"{text!r} is no key: `shoal why URL` shows keys, 16 characters of 0-9 and a-f")
    return number - KEYS if number >= KEYS // 2 else number


def generations_due(began: float, dedup_ttl: float, *, now: float) -> int:
    """How many generations are due after the one that began at this time."""
    return max(0, math.floor((now - began) / (dedup_ttl / GENERATIONS_PER_TTL)))


def generation_begin(began: float, dedup_ttl: float, due: int) -> float:
    """When the last of the due generations began, after the one that began at this time."""
    return began + due * (dedup_ttl / GENERATIONS_PER_TTL)


def oldest_known(generation: int) -> int:
    """The oldest generation whose keys are known while `generation` is the current one."""
    return generation - KEPT_GENERATIONS + 1


def keys_dropped(crawl: str) -> UsageError:
    """The error for a change that needs the dropped keys: all URLs would be new."""
    return UsageError(
        f"crawl {crawl!r} is finished and its URL keys were dropped (known_ttl): it would fetch again what it has done;"
        " begin a new crawl with `shoal run FILE --again`"
    )


def not_finished(crawl: str, state: str) -> UsageError:
    """The error for dropping the keys of a crawl that still needs them."""
    return UsageError(f"crawl {crawl!r} is {state}: the keys of finished crawls alone can be dropped")


def no_keys_to_know(crawl: str, why: str) -> UsageError:
    """The error for an earlier crawl that cannot list the URLs it has done."""
    return UsageError(
        f"crawl {crawl!r} cannot say which URLs it has done, {why}: --skip-stored REGEX goes by the items instead,"
        " or leave out --skip-known to fetch everything again"
    )


DROPPED = "its URL keys were dropped (known_ttl)"
BLOOM = "it keeps its URL keys in a Bloom filter"
