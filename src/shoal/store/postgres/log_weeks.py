"""The weekly partitions of the fetch log: created, dropped when they are old, or moved into an archive.

A part is moved in one transaction, which ends when its file is written. The file has a random name that is noted first:
a name made of week and number could be used twice, and the later file would replace lines that exist nowhere else. The
lock is in the store, because frontiers may share a store, and it does not expire: the holder of an expired lock could
write over the work of the next one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import date
from typing import Any, Final

import asyncpg
import msgspec

from shoal.errors import ShoalError
from shoal.store.base import FetchRow, LogPart, MovedPart, Put
from shoal.store.postgres.connection import Connection, PostgresLink
from shoal.store.postgres.read import seconds_of
from shoal.store.rules import LINES_PER_PART, monday_of, new_name, week_number, week_of, week_text

LOCK_SECONDS: Final = 2
REST_SECONDS: Final = 60.0
LINES_PER_STEP: Final = 5000
# The time for writing one file; then the server restores the lines.
MOVE_SECONDS: Final = 600.0

_COLUMNS: Final = FetchRow.__struct_fields__
_LINES: Final = ", ".join(f"{seconds_of('line.at')} AS at" if name == "at" else name for name in _COLUMNS)
# Lines of a week in its own table, or in `fetches_other`, after a position.
_OF_WEEK: Final = "FROM {table} WHERE ctid > $1 AND at >= to_timestamp($2::float8) AND at < to_timestamp($3::float8)"
_TAKE: Final = f"""
    DELETE FROM {{table}} AS line WHERE ctid = ANY(ARRAY(SELECT ctid {_OF_WEEK} LIMIT {LINES_PER_PART}))
    RETURNING ctid, {_LINES}"""  # noqa: S608 -- columns of ours
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('shoal log ' || current_schema(), 0))"
_BEGUN: Final = "SELECT name, week, archive FROM log_parts WHERE moved_at IS NULL"
_OTHER: Final = "fetches_other"

_Position = tuple[int, int]
_FIRST: Final[_Position] = (0, 0)


class Weeks:
    """The partitions that are known to exist. The partition of the next week is made ahead."""

    def __init__(self, link: PostgresLink) -> None:
        self._link = link
        self._there: set[int] = set()
        self._rests_until = 0.0

    async def need(self, weeks: set[int]) -> None:
        """Create the partitions of these weeks and the weeks after them, if they are near the server's present. Lines
        of other weeks, and of a week that cannot be created while a long read locks the log, go to `fetches_other`."""
        for week in sorted(weeks - self._there):
            for number in (week, week + 1):
                if time.monotonic() >= self._rests_until and number not in self._there:
                    await self._make(number)

    async def _make(self, week: int) -> None:
        async with self._link.transaction() as connection:
            await connection.execute(f"SET LOCAL lock_timeout TO '{LOCK_SECONDS}s'")
            try:
                is_there = await connection.fetchval("SELECT add_week(to_timestamp($1))", max(monday_of(week), 0.0))
            except asyncpg.LockNotAvailableError:
                await connection.execute("ROLLBACK; BEGIN")
                self._rests_until = time.monotonic() + REST_SECONDS
                return
        if is_there:
            self._there.add(week)


async def drop_weeks(link: PostgresLink, *, retention: float) -> int:
    """Drop weeks that ended over `retention` seconds ago; returns how many. A week that is being read stays for now."""
    before = "now() - make_interval(secs => $1)"
    async with link.transaction(reads=True) as connection:
        old = [row[0] for row in await connection.fetch(f"SELECT weeks_before({before})", retention)]
    gone = 0
    for week in old:
        async with link.transaction() as connection:
            # Other processes queue behind this statement: a long read must not block them as well.
            await connection.execute(f"SET LOCAL lock_timeout TO '{LOCK_SECONDS}s'")
            try:
                await connection.execute(f"DROP TABLE IF EXISTS {week}")
            except asyncpg.LockNotAvailableError:
                await connection.execute("ROLLBACK; BEGIN")
                return gone
            gone += 1
    return gone


async def drop_lines(link: PostgresLink, *, retention: float) -> int:
    """Delete old lines of `fetches_other`, in batches; returns how many."""
    query = f"""
        DELETE FROM fetches_other WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM fetches_other WHERE at < now() - make_interval(secs => $1) LIMIT {LINES_PER_STEP}))"""  # noqa: S608 -- a number of ours
    gone, step = 0, LINES_PER_STEP
    while step == LINES_PER_STEP:
        async with link.transaction() as connection:
            step = int((await connection.execute(query, retention)).rpartition(" ")[2])
        gone += step
    return gone


class _Step(msgspec.Struct, frozen=True):
    """The result of moving a part: how many lines, and where the next part begins."""

    moved: int = 0
    position: _Position = _FIRST
    is_part: bool = False
    # Then stop: if two processes move weeks in turn, each skips the weeks of the other.
    is_for_another: bool = False


_NOTHING: Final = _Step()
_FOR_ANOTHER: Final = _Step(is_for_another=True)


class PostgresLogWeeks:
    """Implements `LogWeeks`. The lines of a part are deleted first and restored unless the transaction commits: a
    process that dies or hangs changes nothing. It locks the row of the part meanwhile."""

    def __init__(self, link: PostgresLink) -> None:
        self._link = link

    async def move(self, *, retention: float, archive: str, put: Put) -> AsyncIterator[int]:
        """Move old weeks, one part per step, first a part that a crashed process began."""
        async with self._link.transaction() as connection:
            now = await connection.fetchval("SELECT extract(epoch FROM now())::float8")
            tables = await _tables_before(connection, monday_of(week_of(now - retention)))
            begun = await connection.fetchrow(_BEGUN)
        first = [week_number(begun["week"].isoformat())] if begun else []
        for week in dict.fromkeys([*first, *sorted(tables)]):
            for table in tables.get(week, [_OTHER]):
                step = await self._move(week, table, _FIRST, archive=archive, put=put)
                while step.is_part:
                    yield step.moved
                    step = await self._move(week, table, step.position, archive=archive, put=put)
                if step.is_for_another:
                    return
                if table != _OTHER:
                    await self._drop_if_empty(table)

    async def moved(self) -> list[MovedPart]:
        """All moved files."""
        query = f"""
            SELECT week::text, archive, name, lines, {seconds_of("moved_at")} AS moved_at FROM log_parts
            WHERE moved_at IS NOT NULL AND lines > 0 ORDER BY log_parts.week, log_parts.moved_at, name"""  # noqa: S608 -- columns of ours
        async with self._link.transaction(reads=True) as connection:
            return [MovedPart(**dict(row)) for row in await connection.fetch(query)]

    async def _move(self, week: int, table: str, position: _Position, *, archive: str, put: Put) -> _Step:
        """Move a part of a week, unless there is none, or another process moves this store's log now."""
        where = (position, monday_of(week), monday_of(week + 1))
        name = await self._begin(week, table, where, archive=archive)
        if not name:
            return _NOTHING if name == "" else _FOR_ANOTHER
        async with self._link.transaction(seconds=MOVE_SECONDS) as connection:
            await connection.execute(f"SET LOCAL idle_in_transaction_session_timeout TO {int(MOVE_SECONDS * 1000)}")
            begun = await connection.fetchrow(f"{_BEGUN} AND name = $1 FOR UPDATE SKIP LOCKED", name)
            if begun is None:
                return _FOR_ANOTHER
            rows = await connection.fetch(_TAKE.format(table=table), *where)
            lines = [FetchRow(**{column: row[column] for column in _COLUMNS}) for row in rows]
            begun_in = begun["archive"] if begun["archive"] != archive else ""
            try:
                await put(LogPart(name=name, week=week_text(week), lines=lines, begun_in=begun_in))
            except ShoalError:
                # The driver will drop the connection, which the server may notice late.
                await connection.execute("ROLLBACK")
                raise
            await connection.execute(
                "UPDATE log_parts SET archive = $2, lines = $3, moved_at = now() WHERE name = $1",
                *(name, archive, len(lines)),
            )
        return _Step(len(lines), max((tuple(row["ctid"]) for row in rows), default=position), is_part=True)

    async def _begin(self, week: int, table: str, where: tuple[Any, ...], *, archive: str) -> str | None:
        """The name of the next part, noted from now on; empty: nothing to move; None: another process has begun a
        part."""
        monday = date.fromisoformat(week_text(week))
        async with self._link.transaction() as connection:
            await connection.execute(_LOCK)
            begun = await connection.fetchrow(_BEGUN)
            if begun is not None:
                return str(begun["name"]) if begun["week"] == monday else None
            if not await connection.fetchval(f"SELECT EXISTS (SELECT {_OF_WEEK.format(table=table)})", *where):
                return ""
            name = new_name(week)
            await connection.execute(
                "INSERT INTO log_parts (name, week, archive) VALUES ($1, $2, $3)", name, monday, archive
            )
            return name

    async def _drop_if_empty(self, week: str) -> None:
        """Drop the table of a week. Skipped if a line was added meanwhile, or a long read locks the log: the next move
        drops it."""
        async with self._link.transaction() as connection:
            await connection.execute(f"SET LOCAL lock_timeout TO '{LOCK_SECONDS}s'")
            try:
                # Locks out writers, not readers: lines may have come since the deletion.
                await connection.execute(f"LOCK TABLE {week} IN SHARE ROW EXCLUSIVE MODE")
                if not await connection.fetchval(f"SELECT EXISTS (SELECT FROM {week})"):  # noqa: S608 -- a table of ours
                    await connection.execute(f"DROP TABLE {week}")
            except (asyncpg.LockNotAvailableError, asyncpg.UndefinedTableError):
                await connection.execute("ROLLBACK; BEGIN")


async def _tables_before(connection: Connection, cut: float) -> dict[int, list[str]]:
    """The weeks before a time that may have lines, with the tables of these lines."""
    tables: dict[int, list[str]] = {}
    for row in await connection.fetch("SELECT weeks_before(to_timestamp($1::float8))", cut):
        monday = date.fromisoformat(row[0].removeprefix("fetches_"))
        tables.setdefault(week_number(monday.isoformat()), []).append(row[0])
    query = f"""
        SELECT DISTINCT date_trunc('week', at AT TIME ZONE 'UTC')::date::text FROM {_OTHER}
        WHERE at < to_timestamp($1::float8)"""  # noqa: S608 -- a table of ours
    for row in await connection.fetch(query, cut):
        tables.setdefault(week_number(row[0]), []).append(_OTHER)
    return tables
