"""Moves old weeks of the fetch log out of `shoal.db`. The name of a file is noted before the file is written."""

from __future__ import annotations

import fcntl
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from shoal.errors import StorageError
from shoal.sqlite_file import FileConnection, transaction
from shoal.store.base import FetchRow, LogPart, MovedPart, Put
from shoal.store.rules import LINES_PER_PART, monday_of, new_name, week_number, week_of, week_text

LOG_TABLES: Final = ("fetch", "earlier_fetch")
ROWS_PER_STEP: Final = 20_000

_COLUMNS: Final = FetchRow.__struct_fields__
_SOME: Final = f"""
    SELECT rowid, {", ".join(_COLUMNS)} FROM {{table}}
    WHERE rowid > ? AND rowid <= ? AND at >= ? AND at < ? ORDER BY rowid LIMIT ?"""  # noqa: S608 -- columns of ours
_LOCK_ENDING: Final = ".log-lock"

# Not `executemany`: it releases the interpreter lock at every row while all writers wait.
_DROP: Final = """
    DELETE FROM {table} WHERE rowid IN (
        SELECT line.rowid FROM json_each(?) AS gone CROSS JOIN {table} AS line
        ON line.crawl = gone.value ->> 0 AND line.key = gone.value ->> 1 AND line.token = gone.value ->> 2)"""

Run = Callable[..., Awaitable[Any]]
_Identity = tuple[str, int, int]


class SqliteLogWeeks:
    """Implements `LogWeeks`. `run` runs work on the store's thread."""

    def __init__(self, connection: FileConnection, *, path: Path, run: Run, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._path = path
        self._run = run
        self._clock = clock

    async def move(self, *, retention: float, archive: str, put: Put) -> AsyncIterator[int]:
        """Move old weeks, one part per step, first a part that a crashed process began."""
        with ExitStack() as stack:
            # However long its holder pauses: no other process writes under the same names.
            if not _hold(self._path, stack):
                return
            cut = monday_of(week_of(self._clock() - retention))
            begun = await self._run(_begun, self._connection)
            due = sorted(await self._weeks_before(cut))
            for week in dict.fromkeys([*([week_number(begun[1])] if begun else []), *due]):
                async for moved in self._move_week(week, archive, put):
                    yield moved

    async def moved(self) -> list[MovedPart]:
        """All moved files."""
        found: list[MovedPart] = await self._run(_moved, self._connection)
        return found

    async def _move_week(self, week: int, archive: str, put: Put) -> AsyncIterator[int]:
        reader = _WeekReader(self._connection, week)
        while True:
            while not await self._run(reader.read_on):
                pass
            name, begun_in = await self._run(_begin, self._connection, week, archive, only_begun=not reader.found)
            if not name:
                return
            found = list(reader.found.values())
            await put(LogPart(name=name, week=week_text(week), lines=found, begun_in=begun_in))
            await self._run(_drop, self._connection, name, list(reader.found), now=self._clock())
            yield len(found)
            reader.found.clear()

    async def _weeks_before(self, cut: float) -> Counter[int]:
        """The weeks with lines before a time, searched in steps."""
        weeks: Counter[int] = Counter()
        for table in LOG_TABLES:
            last = await self._run(_last_row, self._connection, table)
            for start in range(0, last, ROWS_PER_STEP):
                weeks.update(await self._run(_weeks_in, self._connection, table, start, cut))
        return weeks


class _WeekReader:
    """Reads the lines of a week, from the end of the last part on."""

    def __init__(self, connection: FileConnection, week: int) -> None:
        self._connection = connection
        self._span = monday_of(week), monday_of(week + 1)
        self._tables = list(LOG_TABLES)
        self._position = 0
        # By identity: a line that moves to the other table meanwhile is read twice.
        self.found: dict[_Identity, FetchRow] = {}

    def read_on(self) -> bool:
        """Read some more rows; returns True when a part is full or all rows are read."""
        missing = LINES_PER_PART - len(self.found)
        if not self._tables or not missing:
            return True
        table, end = self._tables[0], self._position + ROWS_PER_STEP
        rows = self._connection.execute(
            _SOME.format(table=table), (self._position, end, *self._span, missing)
        ).fetchall()
        for row in rows:
            line = FetchRow(**dict(zip(_COLUMNS, row[1:], strict=True)))
            self.found[line.crawl, line.key, line.token] = line
        self._position = rows[-1][0] if len(rows) == missing else end
        if self._position >= _last_row(self._connection, table):
            self._tables.pop(0)
            self._position = 0
        return False


def _hold(path: Path, stack: ExitStack) -> bool:
    try:
        file = stack.enter_context(path.with_name(path.name + _LOCK_ENDING).open("ab"))
    except OSError as error:
        raise StorageError(f"{error.filename} cannot be made beside the store: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _last_row(connection: sqlite3.Connection, table: str) -> int:
    (last,) = connection.execute(f"SELECT coalesce(max(rowid), 0) FROM {table}").fetchone()  # noqa: S608 -- a table of ours
    return int(last)


def _weeks_in(connection: sqlite3.Connection, table: str, start: int, cut: float) -> Counter[int]:
    query = f"SELECT at FROM {table} WHERE rowid > ? AND rowid <= ? AND at < ?"  # noqa: S608 -- a table of ours
    return Counter(week_of(at) for (at,) in connection.execute(query, (start, start + ROWS_PER_STEP, cut)))


def _begun(connection: sqlite3.Connection) -> tuple[str, str, str] | None:
    query = "SELECT name, week, archive FROM log_part WHERE moved_at IS NULL"
    found: tuple[str, str, str] | None = connection.execute(query).fetchone()
    return found


def _begin(connection: sqlite3.Connection, week: int, archive: str, *, only_begun: bool) -> tuple[str, str]:
    """The name of the next part of a week, noted from now on, and the archive that it was begun in before, if that is
    another one. An empty name: nothing to move."""
    with transaction(connection):
        begun = _begun(connection)
        if begun is not None and begun[1] == week_text(week):
            name, _, former = begun
            connection.execute("UPDATE log_part SET archive = ? WHERE name = ?", (archive, name))
            return name, former if former != archive else ""
        if only_begun:
            return "", ""
        name = new_name(week)
        connection.execute(
            "INSERT INTO log_part (name, week, archive) VALUES (?, ?, ?)", (name, week_text(week), archive)
        )
        return name, ""


def _drop(connection: sqlite3.Connection, name: str, lines: list[_Identity], *, now: float) -> None:
    """Delete exactly these lines and note that they are in their file. From both tables: a line of `fetch` moves to
    `earlier_fetch` when its task is tried again meanwhile."""
    identities = msgspec.json.encode(lines).decode()
    with transaction(connection):
        for table in LOG_TABLES:
            connection.execute(_DROP.format(table=table), (identities,))
        connection.execute("UPDATE log_part SET lines = ?, moved_at = ? WHERE name = ?", (len(lines), now, name))


def _moved(connection: sqlite3.Connection) -> list[MovedPart]:
    query = """
        SELECT week, archive, name, lines, moved_at FROM log_part
        WHERE moved_at IS NOT NULL AND lines > 0 ORDER BY week, moved_at, name"""
    return [
        MovedPart(week=week, archive=archive, name=name, lines=lines, moved_at=moved_at)
        for week, archive, name, lines, moved_at in connection.execute(query)
    ]
