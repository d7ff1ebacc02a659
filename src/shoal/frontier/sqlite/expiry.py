"""Keys that expire. A key whose task ended is known through its generation and the next two.

A generation lasts half a `dedup_ttl`: so a key stays known for at least the whole of it and at most one and a half
times as long, and expiry never has to look at single keys. Tasks that have not ended are none of this: theirs are in
`seen`. Crawls without a `dedup_ttl` keep all keys there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from shoal.frontier.sqlite.ledger import Ledger

GENERATIONS = 3
MAX_SWEPT = 500  # per call, so that a call stays short; what is left waits for the next one

KNOWN_PAST = (
    "SELECT value FROM json_each(?) CROSS JOIN past"
    " ON past.crawl = ? AND past.generation IN (?, ?, ?) AND past.key = value"
)
EXPIRED_PAST = "SELECT crawl, generation, key FROM past WHERE crawl = ? AND generation < ? LIMIT ?"


def turn(ledger: Ledger) -> None:
    """Begin the generations that are due, and remove some of the keys that have expired."""
    if not ledger.crawl.dedup_ttl:
        return
    turns = _turns(ledger)
    if turns:
        _begin_generation(ledger, turns, at=ledger.crawl.turned + turns * (ledger.crawl.dedup_ttl / 2))
    _sweep(ledger)


def change_ttl(ledger: Ledger, seconds: float) -> None:
    """Only where there is one. A generation that is too old for a shorter one ends here, so that none of its keys is
    forgotten too early."""
    crawl = ledger.crawl
    if crawl.dedup_ttl and seconds and seconds != crawl.dedup_ttl:
        turn(ledger)
        crawl.dedup_ttl = seconds
        ledger.db.execute("UPDATE crawl SET dedup_ttl = ? WHERE id = ?", (seconds, crawl.id))
        if _turns(ledger):
            _begin_generation(ledger, 1, at=ledger.now)
        ledger.flush()


def retire(ledger: Ledger, keys: Iterable[int]) -> None:
    """The tasks with these keys have ended. Call `turn` first."""
    crawl = ledger.crawl
    if not crawl.dedup_ttl:
        return
    places = [(crawl.id, key) for key in keys]
    ledger.db.executemany("DELETE FROM seen WHERE crawl = ? AND key = ?", places)
    ledger.db.executemany(
        "INSERT INTO past (crawl, generation, key) VALUES (?, ?, ?)",
        [(crawl_id, crawl.generation, key) for crawl_id, key in places],
    )


def ended(ledger: Ledger, keys: Iterable[int]) -> set[int]:
    """Those of the keys whose tasks ended not long ago."""
    crawl = ledger.crawl
    if not crawl.dedup_ttl:
        return set()
    newest = crawl.generation + _turns(ledger)
    listed = msgspec.json.encode(list(keys)).decode()
    rows = ledger.db.execute(KNOWN_PAST, (listed, crawl.id, newest, newest - 1, newest - 2))
    return {key for (key,) in rows}


def forget_ended(ledger: Ledger, keys: Iterable[int]) -> None:
    """Let these keys be put again."""
    crawl = ledger.crawl
    if crawl.dedup_ttl:
        ledger.db.executemany(
            "DELETE FROM past WHERE crawl = ? AND generation = ? AND key = ?",
            [(crawl.id, crawl.generation - back, key) for key in keys for back in range(GENERATIONS)],
        )


def _turns(ledger: Ledger) -> int:
    """How many generations should have begun since the current one did."""
    crawl = ledger.crawl
    return max(0, math.floor((ledger.now - crawl.turned) / (crawl.dedup_ttl / 2)))


def _begin_generation(ledger: Ledger, turns: int, *, at: float) -> None:
    """Workers learn by the epoch that they must forget as well."""
    crawl = ledger.crawl
    crawl.generation += turns
    crawl.turned = at
    crawl.epoch += 1
    ledger.db.execute(
        "UPDATE crawl SET generation = ?, turned = ? WHERE id = ?", (crawl.generation, crawl.turned, crawl.id)
    )


def _sweep(ledger: Ledger) -> None:
    crawl = ledger.crawl
    oldest = crawl.generation - GENERATIONS + 1
    rows = ledger.db.execute(EXPIRED_PAST, (crawl.id, oldest, MAX_SWEPT)).fetchall()
    if rows:
        ledger.db.executemany("DELETE FROM past WHERE crawl = ? AND generation = ? AND key = ?", rows)
