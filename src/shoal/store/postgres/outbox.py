"""The outbox in PostgreSQL. Rows are deleted one by one when their sink has them: `schema.sql` says why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.store.base import READ_BYTES, Outgoing, SinkPlace, SinkState
from shoal.store.postgres.connection import PostgresLink
from shoal.store.postgres.read import as_written

ROWS_PER_STEP = 500
LOCK_SECONDS = 10

_SINKS = """
    SELECT id, spider, url, host, has_secret, extract(epoch FROM added)::float8, sent,
           extract(epoch FROM sent_at)::float8, trouble, extract(epoch FROM trouble_since)::float8, holder,
           (SELECT count(*) FROM (SELECT FROM outbox WHERE sink = sinks.id LIMIT $2::bigint) AS counted),
           (SELECT extract(epoch FROM queued)::float8 FROM outbox WHERE sink = sinks.id ORDER BY position LIMIT 1)
    FROM sinks WHERE $1::text IS NULL OR spider = $1 ORDER BY id"""
_ADD = """
    INSERT INTO sinks (spider, url, host, has_secret) VALUES ($1, $2, $3, $4)
    ON CONFLICT (spider, url, host) DO UPDATE SET has_secret = excluded.has_secret RETURNING id"""
_HOLD = """
    UPDATE sinks SET holder = $2, held_until = clock_timestamp() + make_interval(secs => $3)
    WHERE id = $1 AND (holder = $2 OR held_until <= clock_timestamp()) RETURNING id"""
# The length of a text is known without reading it: only rows that fit are read.
_READ = f"""
    SELECT position, key, version, change, extract(epoch FROM at)::float8, url, crawl, data FROM (
        SELECT *, sum(octet_length(data)) OVER (ORDER BY position) - octet_length(data) AS before FROM (
            SELECT * FROM outbox WHERE sink = $1 ORDER BY position LIMIT $2) AS first) AS measured
    WHERE before <= {READ_BYTES} ORDER BY position"""  # noqa: S608 -- a number of ours
_PASSED = """
    WITH gone AS (DELETE FROM outbox WHERE sink = $1 AND position = ANY($2::bigint[]) RETURNING position)
    UPDATE sinks SET sent = sent + (SELECT count(*) FROM gone), sent_at = now(), trouble = '', trouble_since = NULL
    WHERE id = $1"""
_FAILED = """
    UPDATE sinks SET trouble = $2, trouble_since = CASE WHEN trouble = '' THEN now() ELSE trouble_since END
    WHERE id = $1"""
# The rows are locked before positions are assigned: a change that comes meanwhile waits and gets a later position.
_REPLAY = f"""
    WITH chosen AS MATERIALIZED (
        SELECT key, version + moves AS version, changed_at, url, crawl, data FROM items
        WHERE spider = (SELECT spider FROM sinks WHERE id = $1) AND key > $2 AND gone_at IS NULL
            AND changed_at >= to_timestamp($3)
        ORDER BY key LIMIT {ROWS_PER_STEP} FOR SHARE)
    INSERT INTO outbox (sink, key, version, change, at, url, crawl, data)
    SELECT $1, key, version, 'new', changed_at, url, crawl, data::text FROM chosen ORDER BY key
    RETURNING key"""  # noqa: S608 -- a number of ours
_DROP = f"""
    DELETE FROM outbox WHERE sink = $1 AND position = ANY(ARRAY(
        SELECT position FROM outbox WHERE sink = $1 LIMIT {10 * ROWS_PER_STEP}))"""  # noqa: S608 -- a number of ours


class PostgresOutbox:
    """Implements `Outbox` in the store's schema."""

    def __init__(self, link: PostgresLink) -> None:
        self._link = link

    async def add(self, place: SinkPlace) -> int:
        """Store changes for this sink, after the transactions that write now."""
        async with self._link.transaction() as connection:
            # Writers queue behind this statement: they must not wait long.
            await connection.execute(f"SET LOCAL lock_timeout TO '{LOCK_SECONDS}s'")
            await connection.execute("SELECT note_changes()")
            values = (place.spider, place.url, place.host, place.has_secret)
            return int(await connection.fetchval(_ADD, *values))

    async def sinks(self, spider: str | None = None, *, counted: int | None = None) -> list[SinkState]:
        """The sinks of a spider, or all."""
        async with self._link.transaction(reads=True) as connection:
            return [_state(row) for row in await connection.fetch(_SINKS, spider, counted)]

    async def hold(self, sink: int, holder: str, *, seconds: float) -> bool:
        """Lock the sink, by the server's clock."""
        async with self._link.transaction() as connection:
            return await connection.fetchval(_HOLD, sink, holder, seconds) is not None

    async def read(self, sink: int, *, limit: int) -> list[Outgoing]:
        """The oldest waiting changes."""
        async with self._link.transaction(reads=True) as connection:
            rows = await connection.fetch(_READ, sink, limit)
        return [
            Outgoing(
                position=row[0],
                key=row[1],
                version=row[2],
                change=row[3],
                at=row[4],
                url=row[5],
                crawl=row[6],
                data=as_written(row[7].encode()),
            )
            for row in rows
        ]

    async def passed(self, sink: int, changes: Sequence[Outgoing]) -> None:
        """Delete delivered changes."""
        if changes:
            async with self._link.transaction() as connection:
                await connection.execute(_PASSED, sink, [change.position for change in changes])

    async def failed(self, sink: int, why: str) -> None:
        """Note the trouble of a sink."""
        async with self._link.transaction() as connection:
            await connection.execute(_FAILED, sink, why.replace("\0", ""))

    async def replay(self, sink: int, *, since: float | None = None) -> int:
        """Queue the items again, by key, a batch per transaction."""
        key, queued = "", 0
        while True:
            async with self._link.transaction() as connection:
                rows = await connection.fetch(_REPLAY, sink, key, since or 0.0)
            queued += len(rows)
            if len(rows) < ROWS_PER_STEP:
                return queued
            key = max(row["key"] for row in rows)

    async def remove(self, sink: int) -> None:
        """Delete a sink, in steps."""
        async with self._link.transaction() as connection:
            await connection.execute("DELETE FROM sinks WHERE id = $1", sink)
        gone = "DELETE 1"
        while not gone.endswith(" 0"):
            async with self._link.transaction() as connection:
                gone = await connection.execute(_DROP, sink)


def _state(row: Any) -> SinkState:
    return SinkState(
        id=row[0],
        place=SinkPlace(spider=row[1], url=row[2], host=row[3], has_secret=row[4]),
        added=row[5],
        sent=row[6],
        sent_at=row[7] or 0.0,
        trouble=row[8],
        trouble_since=row[9] or 0.0,
        holder=row[10],
        waiting=row[11],
        oldest=row[12] or 0.0,
    )
