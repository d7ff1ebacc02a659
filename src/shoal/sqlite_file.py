"""Opening `shoal.db`: one file, several parts, several processes. Its refusals become one clear line each."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from shoal.errors import StorageError

APPLICATION_ID = 0x53484F4C
BUSY_SECONDS = 30.0
NO_MIGRATIONS: Mapping[int, str] = MappingProxyType({})

_REFUSALS = {
    sqlite3.SQLITE_BUSY: "{path} is locked by another process: wait for it to end, or use another file",
    sqlite3.SQLITE_LOCKED: "{path} is locked by another process: wait for it to end, or use another file",
    sqlite3.SQLITE_FULL: "{path}: the disk is full; nothing that was saved is lost, make room and run again",
    sqlite3.SQLITE_NOTADB: "{path} is not a shoal database: choose another file, or move this one away",
    sqlite3.SQLITE_CORRUPT: "{path} is damaged: restore a copy, or move it away and start afresh",
    sqlite3.SQLITE_READONLY: "{path} cannot be written: check its permissions and those of its folder",
    sqlite3.SQLITE_PERM: "{path} cannot be written: check its permissions and those of its folder",
    sqlite3.SQLITE_CANTOPEN: "{path} cannot be opened: check that its folder exists and that you may write there",
    sqlite3.SQLITE_IOERR: "{path}: the disk reports an error while reading or writing; check the disk",
}


def connect(
    path: str | Path,
    *,
    part: str,
    version: int,
    schema_sql: str,
    migrations: Mapping[int, str] = NO_MIGRATIONS,
    busy_seconds: float = BUSY_SECONDS,
) -> sqlite3.Connection:
    """Open the file, refuse a foreign or newer one, create this part's tables or bring them up to date.

    `migrations` has, by a former version, the statements that lead to the next one."""
    if Path(path).is_dir():
        raise StorageError(f"{path} is a folder: give the path of a file")
    with storage_errors(path):
        connection = sqlite3.connect(
            path, timeout=busy_seconds, isolation_level=None, cached_statements=256, check_same_thread=False
        )
        try:
            # The check comes before any write: another program's file must stay as it is.
            found = _version(connection, path, part)
            _configure(connection, busy_seconds)
            if found is None:
                _create(connection, path, part, version, schema_sql)
                found = _version(connection, path, part)
            if found != version:
                _migrate(connection, path, part=part, version=version, migrations=migrations)
        except BaseException:
            connection.close()
            raise
    return connection


def translate(error: sqlite3.Error, path: str | Path) -> StorageError:
    """What SQLite refuses, as one line that says what to do."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return StorageError(_REFUSALS.get(code, f"{{path}}: {error}").format(path=path))


@contextmanager
def storage_errors(path: str | Path) -> Iterator[None]:
    """Turn SQLite's refusals into StorageError."""
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.IntegrityError, sqlite3.DataError):
        raise  # what was asked is wrong, not the file
    except sqlite3.DatabaseError as error:
        raise translate(error, path) from error


@contextmanager
def transaction(connection: sqlite3.Connection, mode: str = "IMMEDIATE") -> Iterator[None]:
    """One transaction: all of it or nothing. DEFERRED is for those that only read."""
    # Immediate: two readers that both turn writer would deadlock.
    connection.execute(f"BEGIN {mode}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # A full disk makes SQLite roll back by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection, path: str | Path, part: str) -> int | None:
    """The version of this part's tables; None when the file has none of them yet."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "shoal_schema" in tables:
        row = connection.execute("SELECT version FROM shoal_schema WHERE part = ?", (part,)).fetchone()
        return None if row is None else int(row[0])
    if tables:
        raise StorageError(f"{path} is a database of another program: choose another file")
    return None


def _configure(connection: sqlite3.Connection, busy_seconds: float) -> None:
    give_up = time.monotonic() + busy_seconds
    while True:
        try:
            # The busy timeout does not cover this change: processes that create the file together meet here.
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.01)
    # A commit may be lost with the power, never torn: leases cover the loss.
    connection.execute("PRAGMA synchronous = NORMAL")
    # Keys are random: a checkpoint writes each page once, so rare ones write much less.
    connection.execute("PRAGMA wal_autocheckpoint = 16000")
    connection.execute("PRAGMA cache_size = -65536")
    connection.execute("PRAGMA temp_store = MEMORY")


def _create(connection: sqlite3.Connection, path: str | Path, part: str, version: int, schema_sql: str) -> None:
    with transaction(connection):
        # Another process may have been quicker.
        if _version(connection, path, part) is not None:
            return
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS shoal_schema (part TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID"
        )
        for statement in _statements(schema_sql):
            connection.execute(statement)
        connection.execute("INSERT INTO shoal_schema (part, version) VALUES (?, ?)", (part, version))


def _migrate(
    connection: sqlite3.Connection, path: str | Path, *, part: str, version: int, migrations: Mapping[int, str]
) -> None:
    with transaction(connection):
        # Another process may have been quicker.
        found = _version(connection, path, part) or 0
        while found != version:
            if found not in migrations:
                raise StorageError(_other_version(path, found, version))
            for statement in _statements(migrations[found]):
                connection.execute(statement)
            found += 1
        connection.execute("UPDATE shoal_schema SET version = ? WHERE part = ?", (version, part))


def _statements(script: str) -> Iterator[str]:
    """One statement at a time: `executescript` would commit the transaction it runs in."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _other_version(path: str | Path, found: int, version: int) -> str:
    if found > version:
        return f"{path} was written by a newer shoal: upgrade shoal, or use another file"
    return f"{path} was written by an older shoal: finish its crawls with that version, or use another file"
