"""Sets aside records of the SQLite frontier that cannot be read, and restores what other records tell.

Runs only after a method has failed on a record: all crawls of the file are checked in one transaction, and the method
runs again. A task that cannot be read becomes a dead letter, `bad record`."""

from __future__ import annotations

import logging
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from shoal.frontier.rules.exits import Offer
from shoal.frontier.rules.hosts import APART, SHARED
from shoal.frontier.rules.tasks import BAD_RECORD, KNOWN_KEYS, SET_ASIDE, aside_line, decoded, outcome_of
from shoal.frontier.sqlite import pools
from shoal.frontier.sqlite.lease import DECODER
from shoal.frontier.sqlite.ledger import WAITING
from shoal.frontier.sqlite.put import SEQUENCES, ids_of
from shoal.frontier.sqlite.rows import (
    CANCELLED,
    DEAD,
    DELAYED,
    HTTP_NUMBER,
    LEASED,
    QUEUED,
    REFRESH_ALL,
    STATE_NAMES,
)
from shoal.model import DIRECT, HTTP, STAGE, Crawl, CrawlState, Pool, Task

# The errors that a damaged record causes.
UNREADABLE: Final = (ValueError, IndexError, KeyError, TypeError, OverflowError, msgspec.MsgspecError)
UNKNOWN_URL: Final = "(unknown URL)"
LONGEST_SHOWN = 500  # bytes of a bad record that its dead letter shows

_CRAWL_NUMBERS = (
    "feeding", "interval", "cap", "needs_rules", "max_pages", "max_per_lane", "max_per_shape", "max_cost", "cost",
    "dedup_ttl", "generation", "generation_began", "epoch", "last_seq", "last_token", "queued", "delayed", "leased",
    "done", "dead", "cancelled", "duplicates", "stale", "retried", "lost", "clock_last", "clock_shift", "ran",
)  # fmt: skip
_LANE_NUMBERS = (
    "next_start", "last_start", "blocked_until", "interval", "base_interval", "cap", "in_flight", "waiting", "known",
    "opener", "rules_until", "rules_version", "sharing", "turn", "wish", "exits_next",
)  # fmt: skip
_TASK_NUMBERS = (
    "crawl", "key", "lane", "ord", "state", "at", "max_attempts", "token", "attempts", "free_retries", "losses",
    "kind",
)  # fmt: skip
_TASK_TEXTS = ("worker", "exit", "reason", "detail")
_BURY = (
    f"UPDATE task SET crawl = ?, key = ?, lane = ?, ord = 0, state = {DEAD}, at = ?, max_attempts = ?, payload = ?,"
    " token = 0, attempts = ?, free_retries = 0, worker = '', exit = '', reason = ?, detail = ?, losses = 0,"
    " kind = ? WHERE id = ?"
)
# SHARED is always safe: such a lane only reads other crawls once more than needed.
_SHARE = (
    f"UPDATE lane SET sharing = iif(instr(name, '{STAGE}') OR (SELECT apart FROM crawl WHERE crawl.id = lane.crawl),"
    f" {APART}, {SHARED}) WHERE id = ?"
)
_DROP_COUNTERS = (
    "DELETE FROM counter WHERE crawl = ?"
    " AND (typeof(value) <> 'integer' OR kind NOT IN ('outcome', 'rejected', 'note', 'waiting')) RETURNING name"
)
_POOLS = msgspec.json.Decoder(tuple[Pool, ...])
_OFFERS = msgspec.json.Decoder(dict[str, Offer])
_NAMES = msgspec.json.Decoder(dict[str, tuple[str, ...]])
_URL = re.compile(rb"https?://[\x21-\x7e]+")
_HEADS = {0xD9: 1, 0xDA: 2}  # the first byte of a packed text of more than 31 bytes, and the bytes of its length

_LOG = logging.getLogger("shoal.frontier")


def mend(db: sqlite3.Connection, *, now: float) -> int:
    """Check all crawls, in the caller's transaction; gives how many records were set aside or corrected."""
    crawls = db.execute("SELECT id, name FROM crawl WHERE state <> 'deleting'").fetchall()
    return sum(_Mend(db, row_id, name, now=now).run() for row_id, name in crawls)


class _Mend:
    """One check of a crawl."""

    def __init__(self, db: sqlite3.Connection, crawl: int, name: str, *, now: float) -> None:
        self._db = db
        self._crawl = crawl
        self._name = name
        self._now = now
        self._aside: Counter[str] = Counter()
        self._kinds: list[str] = []

    def run(self) -> int:
        self._read_crawl()
        self._read_pools()
        self._read_lanes()
        self._read_tasks()
        self._aside["counter"] += len(self._db.execute(_DROP_COUNTERS, (self._crawl,)).fetchall())
        total = self._aside.total()
        for place, number in self._aside.items():
            self._tally("note", SET_ASIDE + place, number)
        if total:
            _LOG.warning("%s", aside_line(self._name, self._aside, kept="the details of dead letters"))
        return total + self._count_anew()

    def _read_crawl(self) -> None:
        """Replace columns that should be numbers by those of a new crawl; counters of tasks are recounted later."""
        fresh = Crawl(id="", spider="")
        last_seq = (
            self._one("SELECT max(id) FROM task WHERE id BETWEEN ? AND ?", *ids_of(self._crawl)) or 0
        ) % SEQUENCES
        defaults = {"interval": fresh.interval, "cap": fresh.cap, "generation_began": self._now, "last_seq": last_seq}
        *kinds, state = self._db.execute(
            f"SELECT {_types(_CRAWL_NUMBERS)}, state FROM crawl WHERE id = ?",
            (self._crawl,),
        ).fetchone()
        for column, kind in zip(_CRAWL_NUMBERS, kinds, strict=True):
            if kind not in ("integer", "real"):
                self._aside["crawl"] += 1
                self._db.execute(f"UPDATE crawl SET {column} = ? WHERE id = ?", (defaults.get(column, 0), self._crawl))
        if state not in set(CrawlState):
            self._aside["crawl"] += 1
            self._db.execute("UPDATE crawl SET state = ? WHERE id = ?", (str(CrawlState.RUNNING), self._crawl))
        for table, row, column, value in (
            ("crawl", "id", "finished", None),
            ("crawl_about", "crawl", "created", 0.0),
        ):
            changed = self._db.execute(
                f"UPDATE {table} SET {column} = ? WHERE {row} = ? AND typeof({column}) IN ('text', 'blob')",
                (value, self._crawl),
            )
            self._aside["crawl"] += changed.rowcount
        if not _reads(decoded, self._one("SELECT limits FROM crawl WHERE id = ?", self._crawl)):
            self._aside["crawl"] += 1
            self._db.execute("UPDATE crawl SET limits = '' WHERE id = ?", (self._crawl,))
        kinds = self._one("SELECT kinds FROM crawl WHERE id = ?", self._crawl)
        self._kinds = kinds.split(",") if kinds and isinstance(kinds, str) else []
        gone = self._db.execute("DELETE FROM feeder WHERE crawl = ? AND typeof(until) <> 'real'", (self._crawl,))
        self._aside["feeder"] += gone.rowcount

    def _read_pools(self) -> None:
        """Drop pools that cannot be read, until the crawl is opened with its pools again."""
        select = "SELECT pools, exit_names, offers FROM crawl_about WHERE crawl = ?"
        row = self._db.execute(select, (self._crawl,)).fetchone()
        readers = (_POOLS.decode, _NAMES.decode, _OFFERS.decode)
        if row is None or all(
            _reads(read, value) for read, value in zip(readers, (row[0], row[1], row[2] or b"{}"), strict=True)
        ):
            return
        self._aside["pools"] += 1
        pools = _POOLS.decode(row[0]) if _reads(_POOLS.decode, row[0]) else ()
        exit_names = {pool.name: pool.exits for pool in pools}
        self._db.execute(
            "UPDATE crawl_about SET pools = ?, exit_names = ?, offers = x'' WHERE crawl = ?",
            (msgspec.json.encode(pools), msgspec.json.encode(exit_names), self._crawl),
        )
        # Exits may have other indexes now.
        self._begin_rosters("SELECT id FROM lane WHERE crawl = ? AND exits <> x''", self._crawl)

    def _read_lanes(self) -> None:
        """Give a lane with a damaged row the pace of its crawl; its counters are recounted later."""
        interval, cap = self._db.execute("SELECT interval, cap FROM crawl WHERE id = ?", (self._crawl,)).fetchone()
        defaults = {"next_start": self._now, "interval": interval, "base_interval": interval, "cap": cap}
        columns = ", ".join(f"{column} = ?" for column in _LANE_NUMBERS)
        values = [defaults.get(column, 0) for column in _LANE_NUMBERS]
        for (row_id,) in self._db.execute(
            f"SELECT id FROM lane WHERE crawl = ? AND ({_odd(_LANE_NUMBERS)} OR typeof(name) <> 'text')",
            (self._crawl,),
        ).fetchall():
            self._aside["lane"] += 1
            self._db.execute(f"UPDATE lane SET {columns} WHERE id = ?", (*values, row_id))
            self._db.execute(_SHARE, (row_id,))
            self._db.execute(
                "UPDATE lane SET name = 'unknown-' || id WHERE id = ? AND typeof(name) <> 'text'", (row_id,)
            )
        for row_id, exits in self._db.execute(
            "SELECT id, exits FROM lane WHERE crawl = ? AND exits <> x''", (self._crawl,)
        ).fetchall():
            if not _reads(pools.decode, exits):
                self._aside["exits"] += 1
                self._begin_rosters("SELECT ?", row_id)

    def _begin_rosters(self, lanes: str, given: int) -> None:
        """Reset the exits of these lanes; their current leases end as if they used no exit."""
        which = f"lane IN ({lanes})"
        self._db.execute(f"UPDATE task SET exit = ? WHERE state = {LEASED} AND {which}", (DIRECT, given))
        self._db.execute(f"DELETE FROM lane_rest WHERE {which}", (given,))
        self._db.execute(f"DELETE FROM lane_exit WHERE {which}", (given,))
        self._db.execute("UPDATE exit SET holder = 0, trial = 0 WHERE crawl = ?", (self._crawl,))
        self._db.execute(f"UPDATE lane SET exits = x'', exits_next = 0 WHERE id IN ({lanes})", (given,))

    def _read_tasks(self) -> None:
        """Turn tasks that cannot be read into dead letters; create missing lanes of tasks."""
        lanes = dict(self._db.execute("SELECT id, name FROM lane WHERE crawl = ?", (self._crawl,)).fetchall())
        odd = f"{_odd(_TASK_NUMBERS)} OR state NOT BETWEEN {QUEUED} AND {CANCELLED} OR {_odd(_TASK_TEXTS, 'text')}"
        # Not fetched at once: there may be millions. Changes follow after the loop.
        rows = self._db.execute(
            f"SELECT id, key, lane, payload, kind, {odd} FROM task WHERE id BETWEEN ? AND ?",
            ids_of(self._crawl),
        )
        bad, homeless, moved = [], [], []
        for row_id, key, lane, payload, kind, is_odd in rows:
            task = _task(payload)
            if is_odd or task is None or task.key != key:
                bad.append((row_id, key, lane, payload))
            elif lane not in lanes:
                homeless.append((row_id, task.lane))
            elif self._number(task.kind) != kind:
                moved.append((self._number(task.kind), row_id))
        for row_id, key, lane, payload in bad:
            self._bury(row_id, key, lane if lane in lanes else None, payload, lanes)
        for row_id, name in homeless:
            self._aside["lane"] += 1
            self._db.execute("UPDATE task SET lane = ? WHERE id = ?", (self._lane(name), row_id))
        self._db.executemany("UPDATE task SET kind = ? WHERE id = ?", moved)
        self._aside["kind"] += len(moved)
        self._db.execute("UPDATE crawl SET kinds = ? WHERE id = ?", (",".join(self._kinds), self._crawl))

    def _number(self, kind: str) -> int:
        """The number of a kind among those of the crawl."""
        if kind != HTTP and kind not in self._kinds:
            self._kinds.append(kind)
        return HTTP_NUMBER if kind == HTTP else self._kinds.index(kind) + 1

    def _bury(self, row_id: int, key: Any, lane: int | None, payload: Any, lanes: dict[int, str]) -> None:
        self._aside["task"] += 1
        task = _task(payload)
        url = task.url if task is not None else _url_in(payload)
        if not isinstance(key, int):
            key = task.key if task is not None else row_id
        lane = self._lane(task.lane if task is not None else "unknown") if lane is None else lane
        name = lanes.get(lane, "unknown")
        # Without a URL, no attempt is allowed: the letter cannot be queued again.
        letter = task or Task(url=url or UNKNOWN_URL, key=key, lane=name, max_attempts=4 if url else 0)
        letter = msgspec.structs.replace(letter, key=key, lane=name)
        state, reason, attempts = self._db.execute(
            "SELECT state, iif(typeof(reason) = 'text', reason, ''), iif(typeof(attempts) = 'integer', attempts, 0)"
            " FROM task WHERE id = ?",
            (row_id,),
        ).fetchone()
        if state == DEAD:
            self._tally("outcome", outcome_of(reason), -1)
        self._tally("outcome", BAD_RECORD, 1)
        shown = payload[:LONGEST_SHOWN] if isinstance(payload, bytes) else str(payload)[:LONGEST_SHOWN].encode()
        self._db.execute(
            _BURY,
            (
                self._crawl, key, lane, self._now, letter.max_attempts, msgspec.msgpack.encode(letter), attempts,
                BAD_RECORD, f"its record: {shown!r}", self._number(letter.kind), row_id,
            ),
        )  # fmt: skip

    def _lane(self, name: str) -> int:
        """The lane of this name; creates it if it is missing."""
        self._db.execute(
            "INSERT OR IGNORE INTO lane (crawl, name, next_start, last_start, blocked_until, interval, base_interval,"
            " cap, in_flight, waiting, known, opener, rules_until, rules_version, exits, exits_next)"
            " SELECT id, ?, ?, 0, 0, interval, interval, cap, 0, 0, 0, 0, 0, 0, x'', 0 FROM crawl WHERE id = ?",
            (name, self._now, self._crawl),
        )
        lane = int(self._one("SELECT id FROM lane WHERE crawl = ? AND name = ?", self._crawl, name))
        self._db.execute(_SHARE, (lane,))
        return lane

    def _count_anew(self) -> int:
        """Recount the tasks of the crawl and of its lanes; gives how many rows were wrong."""
        states = dict(
            self._db.execute(
                "SELECT state, count(*) FROM task WHERE id BETWEEN ? AND ? GROUP BY state", ids_of(self._crawl)
            ).fetchall()
        )
        counts = [states.get(state, 0) for state in range(len(STATE_NAMES))]
        assignments = ", ".join(f"{name} = ?" for name in STATE_NAMES)
        differs = " OR ".join(f"{name} <> ?" for name in STATE_NAMES)
        wrong = self._db.execute(
            f"UPDATE crawl SET {assignments} WHERE id = ? AND ({differs})",
            (*counts, self._crawl, *counts),
        ).rowcount
        keeps_keys = "SELECT dedup_ttl = 0 AND keys = 'known' FROM crawl WHERE id = ?"
        if self._aside["crawl"] and self._one(keeps_keys, self._crawl):
            # A known key without a task is done, unless it was marked as known without one.
            keys = self._one("SELECT count(*) FROM seen WHERE crawl = ?", self._crawl)
            without = "SELECT value FROM counter WHERE crawl = ? AND kind = 'note' AND name = ?"
            done = keys - sum(counts) - int(self._one(without, self._crawl, KNOWN_KEYS) or 0)
            self._db.execute("UPDATE crawl SET done = ? WHERE id = ?", (max(0, done), self._crawl))
        wrong += self._db.execute(_LANES_ANEW, (self._crawl,)).rowcount
        self._count_kinds_anew()
        return wrong

    def _count_kinds_anew(self) -> None:
        """Recount the queues of other kinds than http."""
        self._db.execute("DELETE FROM lane_kind WHERE crawl = ?", (self._crawl,))
        self._db.execute("DELETE FROM counter WHERE crawl = ? AND kind = ?", (self._crawl, WAITING))
        self._db.execute(
            "INSERT INTO lane_kind (lane, kind, crawl, waiting) SELECT lane, kind, crawl, count(*) FROM task"
            f" WHERE id BETWEEN ? AND ? AND state = {QUEUED} AND kind > 0 GROUP BY lane, kind",
            ids_of(self._crawl),
        )
        self._db.execute(REFRESH_ALL, (self._crawl,))
        counts = self._db.execute(
            "SELECT kind, count(*) FROM task WHERE id BETWEEN ? AND ?"
            f" AND state IN ({QUEUED}, {DELAYED}, {CANCELLED}) AND kind > 0 GROUP BY kind",
            ids_of(self._crawl),
        ).fetchall()
        for number, count in counts:
            self._tally(WAITING, self._kinds[number - 1], count)

    def _tally(self, kind: str, name: str, amount: int) -> None:
        if amount:
            self._db.execute(
                "INSERT INTO counter (crawl, kind, name, value) VALUES (?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET value = value + excluded.value",
                (self._crawl, kind, name, amount),
            )

    def _one(self, select: str, *given: object) -> Any:
        row = self._db.execute(select, given).fetchone()
        return None if row is None else row[0]


_LANES_ANEW = (
    "UPDATE lane SET waiting = counted.waiting, in_flight = counted.in_flight, opener = counted.opener FROM ("
    f"SELECT lane.id, count(*) FILTER (WHERE task.state = {QUEUED} AND task.kind = 0) AS waiting,"
    f" count(*) FILTER (WHERE task.state = {LEASED} AND task.token > 0) AS in_flight,"
    f" coalesce(max(lane.opener) FILTER (WHERE task.state = {LEASED} AND abs(task.token) = lane.opener), 0) AS opener"
    f" FROM lane LEFT JOIN task ON task.lane = lane.id AND task.state IN ({QUEUED}, {LEASED})"
    " WHERE lane.crawl = ? GROUP BY lane.id) AS counted WHERE counted.id = lane.id"
    " AND (lane.waiting <> counted.waiting OR lane.in_flight <> counted.in_flight OR lane.opener <> counted.opener)"
)


def _types(columns: Iterable[str]) -> str:
    return ", ".join(f"typeof({column})" for column in columns)


def _odd(columns: Iterable[str], *kinds: str) -> str:
    """The condition that any of these columns has another type than these."""
    listed = ", ".join(f"'{kind}'" for kind in kinds or ("integer", "real"))
    return " OR ".join(f"typeof({column}) NOT IN ({listed})" for column in columns)


def _reads(read: Callable[[Any], object], data: Any) -> bool:
    try:
        read(data)
    except UNREADABLE:
        return False
    return True


def _task(payload: Any) -> Task | None:
    try:
        return DECODER.decode(payload) if isinstance(payload, bytes) else None
    except UNREADABLE:
        return None


def _url_in(payload: Any) -> str:
    """The URL at the beginning of a packed task; empty: not found."""
    raw = payload if isinstance(payload, bytes) else str(payload).encode("utf-8", "replace")
    found = _URL.search(raw)
    if found is None:
        return ""
    size, at = None, found.start()
    if at and 0xA0 <= raw[at - 1] <= 0xBF:
        size = raw[at - 1] & 0x1F
    for head, width in _HEADS.items():
        if at > width and raw[at - width - 1] == head:
            size = int.from_bytes(raw[at - width : at], "big")
    url = found[0] if size is None or size > len(found[0]) else found[0][:size]
    return url.decode("ascii")
