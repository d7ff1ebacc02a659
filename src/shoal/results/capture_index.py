"""The latest capture of every task, sorted in a temporary file: memory stays flat however many there are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from types import TracebackType
from typing import Self

import msgspec

from shoal.archive.base import Capture

_PUT = """
    INSERT INTO capture (key, token, line) VALUES (?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET token = excluded.token, line = excluded.line WHERE excluded.token > token"""
_NEXT = "SELECT token, key, line FROM capture WHERE (token, key) > (?, ?) ORDER BY token, key LIMIT ?"


class CaptureIndex:
    """Takes captures in any order and gives each task's latest, oldest first."""

    def __init__(self) -> None:
        # Without a name SQLite makes a temporary file, which is gone when it is closed.
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.execute("CREATE TABLE capture (key INTEGER PRIMARY KEY, token INTEGER, line BLOB)")
        self._db.execute("CREATE INDEX capture_by_token ON capture (token, key)")
        self._db.execute("BEGIN")
        self._decoder = msgspec.json.Decoder(Capture)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._db.close()

    def __len__(self) -> int:
        with closing(self._db.execute("SELECT count(*) FROM capture")) as cursor:
            return int(cursor.fetchone()[0])

    def add(self, captures: Iterable[Capture]) -> None:
        self._db.executemany(_PUT, ((one.key, one.token, msgspec.json.encode(one)) for one in captures))

    def in_order(self, *, at_once: int) -> Iterator[list[Capture]]:
        """The captures in the order in which they were made, `at_once` at a time."""
        token, key = -(2**63), -(2**63)
        while rows := self._db.execute(_NEXT, (token, key, at_once)).fetchall():
            token, key, _ = rows[-1]
            yield [self._decoder.decode(line) for _, _, line in rows]
