"""The outbox in `shoal.db`. One process writes at a time: positions rise in the order of commits."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from shoal.sqlite_file import transaction
from shoal.store.base import READ_BYTES, Change, Outgoing, SinkPlace, SinkState

ROWS_PER_STEP = 1000

_SINKS = """
    SELECT id, spider, url, host, has_secret, added, sent, sent_at, trouble, trouble_since, holder,
           (SELECT count(*) FROM (SELECT 1 FROM outbox WHERE outbox.sink = sink.id LIMIT ?)),
           (SELECT queued FROM outbox WHERE outbox.sink = sink.id ORDER BY position LIMIT 1)
    FROM sink"""
_ADD = """
    INSERT INTO sink (spider, url, host, has_secret, added) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (spider, url, host) DO UPDATE SET has_secret = excluded.has_secret"""
# One row of JSON instead of a row per change: fetching a row releases the interpreter lock, and beside a busy event
# loop it takes a switch interval to get it back. JSON cuts off the last digit of a time, so times are texts. Sizes are
# summed over two numbers per row: summing whole rows would copy them.
_READ = f"""
    SELECT json_group_array(json_array(position, key, version, change, printf('%!.17g', at), url, crawl, data))
    FROM outbox WHERE sink = :sink AND position <= (
        SELECT max(position) FROM (
            SELECT position, sum(size) OVER (ORDER BY position) - size AS before FROM (
                SELECT position, length(data) AS size FROM outbox WHERE sink = :sink ORDER BY position LIMIT :limit))
        WHERE before <= {READ_BYTES})"""  # noqa: S608 -- a number of ours
# A lock that ends later than any caller asks for: the clock was set back since.
_HOLD = """
    UPDATE sink SET holder = :holder, held_until = :now + :seconds
    WHERE id = :sink AND (holder = :holder OR held_until <= :now OR held_until > :now + :longest)"""
_REPLAY = """
    INSERT INTO outbox (sink, key, version, change, at, url, crawl, data, queued)
    SELECT ?, key, version + moves, 'new', changed_at, url, crawl, data, strftime('%s', 'now')
    FROM item WHERE id > ? AND id <= ? AND +spider = ? AND gone_at IS NULL
        AND changed_at >= ? ORDER BY id"""
LONGEST_HOLD = 3600.0
_DECODER = msgspec.json.Decoder(list[tuple[int, str, int, Change, str, str, str, str]])


class Run(Protocol):
    """Runs a function on the store's thread."""

    def __call__(self, work: Callable[..., Any], *args: Any) -> Awaitable[Any]: ...


class SqliteOutbox:
    """Implements `Outbox` on the store's connection."""

    def __init__(self, connection: sqlite3.Connection, *, run: Run, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._run = run
        self._clock = clock

    async def add(self, place: SinkPlace) -> int:
        """Store changes for this sink."""
        return int(await self._run(self._add, place))

    async def sinks(self, spider: str | None = None, *, counted: int | None = None) -> list[SinkState]:
        """The sinks of a spider, or all."""
        found: list[SinkState] = await self._run(self._sinks, spider, counted)
        return found

    async def hold(self, sink: int, holder: str, *, seconds: float) -> bool:
        """Lock the sink."""
        return bool(await self._run(self._hold, sink, holder, seconds))

    async def read(self, sink: int, *, limit: int) -> list[Outgoing]:
        """The oldest waiting changes."""
        found: list[Outgoing] = await self._run(self._read, sink, limit)
        return found

    async def passed(self, sink: int, changes: Sequence[Outgoing]) -> None:
        """Delete delivered changes."""
        if changes:
            await self._run(self._passed, sink, changes)

    async def failed(self, sink: int, why: str) -> None:
        """Note the trouble of a sink."""
        await self._run(self._failed, sink, why)

    async def replay(self, sink: int, *, since: float | None = None) -> int:
        """Queue the items again, in steps that let other processes write in between."""
        last: int = await self._run(self._last_item)
        queued = 0
        for start in range(0, last, ROWS_PER_STEP):
            queued += await self._run(self._replay, sink, start, since)
        return queued

    async def remove(self, sink: int) -> None:
        """Delete a sink, in steps that let other processes write in between."""
        await self._run(self._forget, sink)
        while await self._run(self._drop_some, sink):
            pass

    def _add(self, place: SinkPlace) -> int:
        with transaction(self._connection):
            values = (place.spider, place.url, place.host, place.has_secret, self._clock())
            self._connection.execute(_ADD, values)
            query = "SELECT id FROM sink WHERE spider = ? AND url = ? AND host = ?"
            (found,) = self._connection.execute(query, (place.spider, place.url, place.host)).fetchone()
        return int(found)

    def _sinks(self, spider: str | None, counted: int | None) -> list[SinkState]:
        where, arguments = (" WHERE spider = ?", [spider]) if spider is not None else ("", [])
        limit = -1 if counted is None else counted
        return [_state(row) for row in self._connection.execute(f"{_SINKS}{where} ORDER BY id", [limit, *arguments])]

    def _hold(self, sink: int, holder: str, seconds: float) -> int:
        values = {"sink": sink, "holder": holder, "seconds": seconds, "now": self._clock(), "longest": LONGEST_HOLD}
        with transaction(self._connection):
            return self._connection.execute(_HOLD, values).rowcount

    def _read(self, sink: int, limit: int) -> list[Outgoing]:
        (text,) = self._connection.execute(_READ, {"sink": sink, "limit": limit}).fetchone()
        return [
            Outgoing(
                position=position,
                key=key,
                version=version,
                change=change,
                at=float(at),
                url=url,
                crawl=crawl,
                data=data.encode(),
            )
            for position, key, version, change, at, url, crawl, data in sorted(_DECODER.decode(text))
        ]

    def _passed(self, sink: int, changes: Sequence[Outgoing]) -> None:
        # All up to the last one: `read` returned the first changes of the sink, and none can come before them.
        drop = "DELETE FROM outbox WHERE sink = ? AND position <= ?"
        count = "UPDATE sink SET sent = sent + ?, sent_at = ?, trouble = '', trouble_since = 0 WHERE id = ?"
        with transaction(self._connection):
            dropped = self._connection.execute(drop, (sink, changes[-1].position)).rowcount
            self._connection.execute(count, (dropped, self._clock(), sink))

    def _failed(self, sink: int, why: str) -> None:
        note = "UPDATE sink SET trouble = ?, trouble_since = iif(trouble = '', ?, trouble_since) WHERE id = ?"
        with transaction(self._connection):
            self._connection.execute(note, (why, self._clock(), sink))

    def _last_item(self) -> int:
        (last,) = self._connection.execute("SELECT coalesce(max(id), 0) FROM item").fetchone()
        return int(last)

    def _replay(self, sink: int, start: int, since: float | None) -> int:
        with transaction(self._connection):
            row = self._connection.execute("SELECT spider FROM sink WHERE id = ?", (sink,)).fetchone()
            if row is None:
                return 0
            values = (sink, start, start + ROWS_PER_STEP, row[0], since or 0.0)
            return self._connection.execute(_REPLAY, values).rowcount

    def _forget(self, sink: int) -> None:
        with transaction(self._connection):
            self._connection.execute("DELETE FROM sink WHERE id = ?", (sink,))

    def _drop_some(self, sink: int) -> int:
        drop = "DELETE FROM outbox WHERE position IN (SELECT position FROM outbox WHERE sink = ? LIMIT ?)"
        with transaction(self._connection):
            return self._connection.execute(drop, (sink, ROWS_PER_STEP)).rowcount


def _state(row: tuple[Any, ...]) -> SinkState:
    identity, spider, url, host, has_secret, added, sent, sent_at, trouble, since, holder, waiting, oldest = row
    return SinkState(
        id=identity,
        place=SinkPlace(spider=spider, url=url, host=host, has_secret=bool(has_secret)),
        added=added,
        sent=sent,
        sent_at=sent_at,
        trouble=trouble,
        trouble_since=since,
        holder=holder,
        waiting=waiting,
        oldest=float(oldest or 0.0),
    )
