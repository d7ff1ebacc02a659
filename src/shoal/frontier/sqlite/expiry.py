"""Keys that expire: the generations of keys whose tasks ended (see `shoal.frontier.rules.keys`).

Keys of tasks that have not ended are in `seen` and never expire. Crawls without a `dedup_ttl` keep all keys there."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shoal.frontier.rules.constants import KEPT_GENERATIONS
from shoal.frontier.rules.keys import generation_begin, generations_due, oldest_known
from shoal.frontier.sqlite.ledger import Ledger

MAX_REMOVED = 500  # expired keys that one call removes, so that it stays short; the next call goes on

KNOWN_PAST = (
    "SELECT value FROM json_each(?) CROSS JOIN past"  # noqa: S608 -- constants
    f" ON past.crawl = ? AND past.generation IN ({', '.join('?' * KEPT_GENERATIONS)}) AND past.key = value"
)
EXPIRED_PAST = "SELECT crawl, generation, key FROM past WHERE crawl = ? AND generation < ? LIMIT ?"


def expire_keys(ledger: Ledger) -> None:
    """Begin the generations that are due, and remove some of the keys that have expired."""
    crawl = ledger.crawl
    if not crawl.dedup_ttl:
        return
    due = _generations_due(ledger)
    if due:
        _begin_generations(ledger, due, at=generation_begin(crawl.generation_began, crawl.dedup_ttl, due))
    _remove_expired(ledger)


def change_ttl(ledger: Ledger, seconds: float) -> None:
    """Change the `dedup_ttl` of a crawl that has one. A generation that is older than half the new one ends here, so
    that none of its keys expires too early."""
    crawl = ledger.crawl
    if crawl.dedup_ttl and seconds and seconds != crawl.dedup_ttl:
        expire_keys(ledger)
        crawl.dedup_ttl = seconds
        ledger.db.execute("UPDATE crawl SET dedup_ttl = ? WHERE id = ?", (seconds, crawl.id))
        if _generations_due(ledger):
            _begin_generations(ledger, 1, at=ledger.now)
        ledger.flush()


def retire(ledger: Ledger, keys: Iterable[int]) -> None:
    """The tasks with these keys have ended: the keys belong to the current generation. Call `expire_keys` first."""
    crawl = ledger.crawl
    if not crawl.dedup_ttl:
        return
    rows = [(crawl.id, key) for key in keys]
    ledger.db.executemany("DELETE FROM seen WHERE crawl = ? AND key = ?", rows)
    ledger.db.executemany(
        "INSERT INTO past (crawl, generation, key) VALUES (?, ?, ?)",
        [(crawl_id, crawl.generation, key) for crawl_id, key in rows],
    )


def known_ended(ledger: Ledger, keys: Iterable[int]) -> set[int]:
    """The keys among these whose tasks ended and that have not expired."""
    crawl = ledger.crawl
    if not crawl.dedup_ttl:
        return set()
    newest = crawl.generation + _generations_due(ledger)
    listed = msgspec.json.encode(list(keys)).decode()
    rows = ledger.db.execute(KNOWN_PAST, (listed, crawl.id, *range(oldest_known(newest), newest + 1)))
    return {key for (key,) in rows}


def forget_ended(ledger: Ledger, keys: Iterable[int]) -> None:
    """Let these keys be put again."""
    crawl = ledger.crawl
    if crawl.dedup_ttl:
        known = range(oldest_known(crawl.generation), crawl.generation + 1)
        ledger.db.executemany(
            "DELETE FROM past WHERE crawl = ? AND generation = ? AND key = ?",
            [(crawl.id, generation, key) for key in keys for generation in known],
        )


def _generations_due(ledger: Ledger) -> int:
    crawl = ledger.crawl
    return generations_due(crawl.generation_began, crawl.dedup_ttl, now=ledger.now)


def _begin_generations(ledger: Ledger, count: int, *, at: float) -> None:
    """Workers learn by the epoch that they must forget the expired keys as well."""
    crawl = ledger.crawl
    crawl.generation += count
    crawl.generation_began = at
    crawl.epoch += 1
    ledger.db.execute("UPDATE crawl SET generation = ?, turned = ? WHERE id = ?", (crawl.generation, at, crawl.id))


def _remove_expired(ledger: Ledger) -> None:
    crawl = ledger.crawl
    rows = ledger.db.execute(EXPIRED_PAST, (crawl.id, oldest_known(crawl.generation), MAX_REMOVED)).fetchall()
    if rows:
        ledger.db.executemany("DELETE FROM past WHERE crawl = ? AND generation = ? AND key = ?", rows)
