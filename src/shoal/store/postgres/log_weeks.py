"""Old weeks of the fetch log leave the database: each part in one transaction, which ends when its file is written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date
from typing import Any, Final

import asyncpg
import msgspec

from shoal.errors import ShoalError
from shoal.store.base import FetchRow, LogPart, MovedPart, Put
from shoal.store.postgres.connection import Connection, PostgresLink
from shoal.store.postgres.read import seconds_of
from shoal.store.postgres.schema import LOCK_SECONDS
from shoal.store.weeks import LINES_PER_PART, monday_of, new_name, week_number, week_of, week_text

# As long as an archive may take for one file. Then the server gives the lines back.
MOVE_SECONDS: Final = 600.0

_COLUMNS: Final = FetchRow.__struct_fields__
_LINES: Final = ", ".join(f"{seconds_of('line.at')} AS at" if name == "at" else name for name in _COLUMNS)
# The table of a week, or the one for lines of other times, from a position on.
_OF_WEEK: Final = "FROM {table} WHERE ctid > $1 AND at >= to_timestamp($2::float8) AND at < to_timestamp($3::float8)"
_TAKE: Final = f"""
    DELETE FROM {{table}} AS line WHERE ctid = ANY(ARRAY(SELECT ctid {_OF_WEEK} LIMIT {LINES_PER_PART}))
    RETURNING ctid, {_LINES}"""  # noqa: S608 -- columns of ours
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('shoal log ' || current_schema(), 0))"
_BEGUN: Final = "SELECT name, week, archive FROM log_parts WHERE moved_at IS NULL"
_OTHER: Final = "fetches_other"

_Position = tuple[int, int]
_FIRST: Final[_Position] = (0, 0)


class _Step(msgspec.Struct, frozen=True):
    """What became of a try to move a part: how many lines went, and where the next one begins."""

    moved: int = 0
    position: _Position = _FIRST
    is_part: bool = False
    # Whoever goes on to other weeks then lets that process find those taken, and both leave weeks behind.
    is_for_another: bool = False


_NOTHING: Final = _Step()
_FOR_ANOTHER: Final = _Step(is_for_another=True)


class PostgresLogWeeks:
    """Keeps `LogWeeks`. The lines of a part are deleted first and come back unless the transaction ends well: whoever
    dies, or stands still for too long, has changed nothing. The row of the part is locked meanwhile: it keeps out
    others."""

    def __init__(self, link: PostgresLink) -> None:
        self._link = link

    async def move(self, *, retention: float, archive: str, put: Put) -> AsyncIterator[int]:
        """Move what is due, a part per step. The part that a process died over comes first."""
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
        """What was moved so far."""
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
                # At once: the server may take a while to see that the line is cut.
                await connection.execute("ROLLBACK")
                raise
            await connection.execute(
                "UPDATE log_parts SET archive = $2, lines = $3, moved_at = now() WHERE name = $1",
                *(name, archive, len(lines)),
            )
        return _Step(len(lines), max((tuple(row["ctid"]) for row in rows), default=position), is_part=True)

    async def _begin(self, week: int, table: str, where: tuple[Any, ...], *, archive: str) -> str | None:
        """The name of the next part, which is noted from now on; empty: there is nothing to move; None: another process
        has begun one."""
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
        """Drop the table of a week, unless a line has come into it meanwhile, or somebody reads the log for long: then
        the next one that moves does it."""
        async with self._link.transaction() as connection:
            await connection.execute(f"SET LOCAL lock_timeout TO '{LOCK_SECONDS}s'")
            try:
                # It keeps out writers, not readers: what was deleted is looked through once more.
                await connection.execute(f"LOCK TABLE {week} IN SHARE ROW EXCLUSIVE MODE")
                if not await connection.fetchval(f"SELECT EXISTS (SELECT FROM {week})"):  # noqa: S608 -- a table of ours
                    await connection.execute(f"DROP TABLE {week}")
            except (asyncpg.LockNotAvailableError, asyncpg.UndefinedTableError):
                await connection.execute("ROLLBACK; BEGIN")


async def _tables_before(connection: Connection, cut: float) -> dict[int, list[str]]:
    """The weeks before a time that may have lines, with the tables in which these are."""
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
