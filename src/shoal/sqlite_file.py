"""Opening `shoal.db`, one SQLite file with several parts, shared by processes; SQLite's errors as one line each.

A part is a group of tables with its own version in the table `shoal_schema`: how many of its `STEPS` have run. A file
with a newer part, or of another program, is refused unchanged.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from shoal.errors import StorageBroken, StorageError

APPLICATION_ID = 0x53484F4C
BUSY_SECONDS = 30.0
LONGEST_ERROR = 300
STATEMENT_ROWS = 128
# Large enough for the pages that most transactions of the frontier change. A larger cache is no faster: SQLite empties
# it whenever another process has written.
CACHE_BYTES = 2560 * 1024
# The scripts that create the tables of each part, run in this order, each once per file. A migration is a new script at
# the end of its part: the first one goes behind `schema.sql`. A released script never changes.
_HERE = Path(__file__).parent
STEPS: Mapping[str, tuple[Path, ...]] = MappingProxyType(
    {
        "frontier": (_HERE / "frontier" / "sqlite" / "schema.sql",),
        "store": (_HERE / "store" / "sqlite" / "schema.sql",),
        "segments": (_HERE / "store" / "files" / "index.sql",),
    }
)

DAMAGED = (
    "{path} is damaged: restore a copy; or save what `shoal export` can still read, move the file away and start afresh"
)
_REFUSALS = {
    sqlite3.SQLITE_BUSY: "{path} is locked by another process: wait for it to end, or use another file",
    sqlite3.SQLITE_LOCKED: "{path} is locked by another process: wait for it to end, or use another file",
    sqlite3.SQLITE_FULL: "{path}: the disk is full; nothing that was saved is lost, make room and run again",
    sqlite3.SQLITE_NOTADB: "{path} is not a shoal database: choose another file, or move this one away",
    sqlite3.SQLITE_CORRUPT: DAMAGED,
    sqlite3.SQLITE_READONLY: "{path} cannot be written: check its permissions and those of its folder",
    sqlite3.SQLITE_PERM: "{path} cannot be written: check its permissions and those of its folder",
    sqlite3.SQLITE_CANTOPEN: "{path} cannot be opened: check that its folder exists and that you may write there",
    sqlite3.SQLITE_IOERR: "{path}: the disk reports an error while reading or writing; check the disk",
}
_NO_TEXT = "Could not decode to UTF-8"
# Errors that do not pass by waiting.
_BROKEN = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})
# A file of items alone is not created again: a run without it names the options that it needs.
_GONE = (
    "{path} was deleted or moved away while shoal used it: put it or a copy back, or run again: that starts afresh, or"
    " says what it needs if the crawl itself is elsewhere"
)
_REPLACED = (
    "{path} was replaced by another file while shoal used it: what was written since is not in the new file; run again"
    " to continue with the new file"
)


_JOURNAL_GONE = (
    "{path}{ending} was deleted or replaced while shoal used it: the latest writes may be missing; end all processes"
    " that use {path}, then run again"
)
_JOURNAL = ("-wal", "-shm")


class FileConnection(sqlite3.Connection):
    """A connection that notices when its file or journal was deleted or replaced. SQLite itself would go on writing to
    a deleted file, and the writes would be lost in silence."""

    def watch(self, path: str | Path) -> None:
        """Remember the file at this path."""
        # A spider may change the working directory.
        self._shown, self._path = str(path), os.path.abspath(path)
        self._files: dict[str, tuple[int, int]] = {}
        self._check("")

    def check_in_place(self) -> None:
        """Raise StorageBroken if the file or its journal is gone or was replaced. Takes a few microseconds.

        Only after the first statement: before it, another process that ends may still remove the journal."""
        for ending in ("", *_JOURNAL):
            self._check(ending)

    def _check(self, ending: str) -> None:
        try:
            found = os.stat(self._path + ending)
        except (FileNotFoundError, NotADirectoryError):
            identity = None
        else:
            identity = found.st_dev, found.st_ino
        known = self._files.get(ending)
        if known == identity:
            return
        if known is None and identity is not None:
            self._files[ending] = identity
        else:
            line = _JOURNAL_GONE if ending else _GONE if identity is None else _REPLACED
            raise StorageBroken(line.format(path=self._shown, ending=ending))


def connect(
    path: str | Path, *, part: str, create: bool = True, steps: Mapping[str, Sequence[Path]] = STEPS
) -> FileConnection:
    """Open the file and run the missing steps of this part. Files of other programs or newer versions are refused;
    without `create`, missing files too."""
    if Path(path).is_dir():
        raise StorageError(f"{path} is a folder: give the path of a file")
    with storage_errors(path):
        connection = _connected(path, create=create)
        try:
            connection.watch(path)
            # The check comes before any write: the file of another program, or of a newer shoal, must stay as it is.
            found = _version(connection, path, part, steps)
            _configure(connection)
            if found < len(steps[part]):
                _run_steps(connection, path, part, steps)
        except BaseException:
            connection.close()
            raise
    return connection


def _connected(path: str | Path, *, create: bool) -> FileConnection:
    # SQLite must refuse the missing file itself: a file that exists when checked may be gone when opened.
    try:
        return sqlite3.connect(
            path if create else f"{Path(path).absolute().as_uri()}?mode=rw",
            uri=not create,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            cached_statements=256,
            check_same_thread=False,
            factory=FileConnection,
        )
    except sqlite3.OperationalError:
        if create or os.path.exists(path):
            raise
        raise StorageError(f"{path} is gone: put it back") from None


def _translated(error: sqlite3.Error, path: str | Path) -> StorageError:
    """SQLite's error as one line that names the remedy."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if str(error).startswith(_NO_TEXT):
        return damaged(path)
    if code in _BROKEN:
        return StorageBroken(_REFUSALS[code].format(path=path))
    if code in _REFUSALS:
        return StorageError(_REFUSALS[code].format(path=path))
    return StorageError(f"{path}: {' '.join(str(error).split())[:LONGEST_ERROR]}")


def damaged(path: str | Path) -> StorageBroken:
    """The error for a file whose content is not what shoal wrote."""
    return StorageBroken(DAMAGED.format(path=path))


@contextmanager
def storage_errors(path: str | Path) -> Iterator[None]:
    """Raise SQLite's errors about the file as StorageError."""
    try:
        yield
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise damaged(path) from error  # also of SQLite's own messages, which quote the file
    except (sqlite3.ProgrammingError, sqlite3.IntegrityError, sqlite3.DataError):
        raise  # the statement is wrong, not the file
    except sqlite3.DatabaseError as error:
        raise _translated(error, path) from error


@contextmanager
def transaction(connection: sqlite3.Connection, mode: str = "IMMEDIATE") -> Iterator[None]:
    """One transaction: all of it or nothing. DEFERRED is for transactions that only read."""
    # Immediate: two readers that both turn writer would deadlock.
    connection.execute(f"BEGIN {mode}")
    try:
        yield
        if isinstance(connection, FileConnection):
            connection.check_in_place()
        connection.execute("COMMIT")
    except BaseException:
        # A full disk makes SQLite roll back by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def insert_rows(connection: sqlite3.Connection, insert: str, rows: Sequence[tuple[Any, ...]], tail: str = "") -> None:
    """Insert rows of equal length; `insert` ends before VALUES, `tail` follows the rows.

    Many rows per statement, not `executemany`, which releases the interpreter lock at every row: beside a busy event
    loop it waits a switch interval each time to get it back (measured: a tenth of the rows per second)."""
    for part in parts(rows):
        statement = f"{insert} VALUES {row_marks(len(part), len(part[0]))}{tail}"
        connection.execute(statement, tuple(chain.from_iterable(part)))


def update_rows(connection: sqlite3.Connection, update: str, rows: Sequence[tuple[Any, ...]], *first: Any) -> int:
    """Update many rows with one statement (see `insert_rows` for why); gives how many changed.

    `update` has {rows} in place of the values, whose column1 is the id of a row; `first`: values before those."""
    changed = 0
    for start in range(0, len(rows), STATEMENT_ROWS):
        part = rows[start : start + STATEMENT_ROWS]
        columns = len(part[0])
        # Padded with rows that match nothing: so a few prepared statements serve every size.
        size = filled_size(len(part))
        values = (*first, *chain.from_iterable(part), *(None,) * (columns * (size - len(part))))
        changed += connection.execute(update_of(update, size, columns), values).rowcount
    return changed


@cache
def filled_size(rows: int) -> int:
    """The number of rows of a statement that has room for this many: a power of two, or three quarters of one."""
    power = 1 << (rows - 1).bit_length()
    return power * 3 // 4 if rows <= power * 3 // 4 else power


@cache
def update_of(update: str, rows: int, columns: int) -> str:
    """The update with placeholders for this many rows."""
    return update.format(rows=row_marks(rows, columns))


def parts(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Cut into powers of two, so that a few prepared statements serve batches of every size."""
    start = 0
    while left := len(rows) - start:
        size = min(STATEMENT_ROWS, 1 << (left.bit_length() - 1))
        yield rows[start : start + size]
        start += size


def row_marks(rows: int, columns: int) -> str:
    """The placeholders of this many rows."""
    row = f"({', '.join('?' * columns)})"
    return ", ".join([row] * rows)


def _version(connection: sqlite3.Connection, path: str | Path, part: str, steps: Mapping[str, Sequence[Path]]) -> int:
    """How many steps of this part have run in the file. Raises StorageError if any part is newer."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "shoal_schema" in tables:
        found = dict(connection.execute("SELECT part, version FROM shoal_schema").fetchall())
        if any(found.get(name, 0) > len(known) for name, known in steps.items()):
            raise StorageError(f"{path} was written by a newer shoal: upgrade shoal, or use another file")
        return int(found.get(part, 0))
    if tables:
        raise StorageError(f"{path} is a database of another program: choose another file")
    return 0


def _configure(connection: sqlite3.Connection) -> None:
    give_up = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            # The busy timeout does not cover this change, and several processes may create the file together.
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.01)
    # A commit may be lost with the power, never torn: leases cover the loss.
    connection.execute("PRAGMA synchronous = NORMAL")
    # Keys are random: a checkpoint writes each changed page of the file once, so rare checkpoints write much less.
    connection.execute("PRAGMA wal_autocheckpoint = 16000")
    connection.execute(f"PRAGMA cache_size = -{CACHE_BYTES // 1024}")
    connection.execute("PRAGMA temp_store = MEMORY")


def _run_steps(
    connection: sqlite3.Connection, path: str | Path, part: str, steps: Mapping[str, Sequence[Path]]
) -> None:
    """All steps that the file lacks, in one transaction."""
    with transaction(connection):
        # Another process may have run them meanwhile.
        found = _version(connection, path, part, steps)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS shoal_schema (part TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID"
        )
        # Not importlib.resources: importing it takes as long as creating the tables.
        for step in steps[part][found:]:
            for statement in _statements(step.read_text(encoding="utf-8")):
                connection.execute(statement)
        connection.execute("REPLACE INTO shoal_schema (part, version) VALUES (?, ?)", (part, len(steps[part])))


def _statements(script: str) -> Iterator[str]:
    """One statement at a time: `executescript` would commit the transaction it runs in."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
