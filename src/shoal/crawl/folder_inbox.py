"""The inbox of a SQLite frontier: folders into which programs put files of URLs or JSON lines."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import quote, unquote

from shoal.crawl.sources import beginning_of, lines_in, other_format
from shoal.frontier.rules.constants import MAX_TAKEN_BYTES
from shoal.text.errors import line_of

FOLDER: Final = "shoal-inbox"
DONE: Final = "done"
LOCK: Final = ".lock"
# A file that was changed within this time may be incomplete.
QUIET_SECONDS: Final = 1.0
UNFINISHED: Final = (".tmp", ".part")
MOST_WATCHED: Final = 20  # files that were taken, watched for later growth

_LOG = logging.getLogger("shoal.inbox")


@dataclass
class _Reading:
    """A file that is being taken: the lines in hand, and the lock of its folder."""

    path: Path
    file: BinaryIO
    lock: int
    taken: list[bytes] = field(default_factory=list)
    lines: int = 0  # already in the frontier

    def close(self) -> None:
        self.file.close()
        os.close(self.lock)


class FolderInbox:
    """An `Inbox` with a folder for each name; one process at a time takes from it.

    A file is moved to `done/` when all its lines are in the frontier: if its taker dies, it is taken again from its
    beginning. `own`: folders of spiders that are elsewhere."""

    def __init__(
        self, base: Path, *, own: Mapping[str, Path] | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._base = base
        self._own = dict(own or {})
        self._clock = clock
        self._reading: dict[str, _Reading] = {}
        self._warned: set[str] = set()
        self._done: dict[Path, int] = {}

    def place(self, name: str) -> str:
        return str(self.folder(name))

    def folder(self, name: str) -> Path:
        """The folder of a crawl or a spider."""
        return self._own.get(name) or self._base / _file_name(name)

    async def names(self) -> list[str]:
        with contextlib.suppress(OSError):
            found = [unquote(path.name) for path in sorted(self._base.iterdir()) if path.is_dir()]
            return await self.waiting(list(dict.fromkeys([*self._own, *found])))
        return await self.waiting(list(self._own))

    async def waiting(self, names: Sequence[str]) -> list[str]:
        self._complain_of_growth()
        return [name for name in names if next(self._files(name), None) is not None]

    async def count(self, names: Sequence[str]) -> dict[str, int]:
        counts = await asyncio.to_thread(lambda: {name: self._count(name) for name in names})
        return {name: number for name, number in counts.items() if number}

    async def take(self, name: str, limit: int) -> list[bytes]:
        reading = self._reading.get(name)
        if reading is not None and reading.taken:
            return reading.taken
        while (reading := self._reading.get(name) or self._begin(name)) is not None:
            self._reading[name] = reading
            reading.taken = list(_entries(reading.file, limit))
            if reading.taken:
                return reading.taken
            self._end(name)
        return []

    async def forget(self, name: str) -> None:
        reading = self._reading.get(name)
        if reading is None:
            return
        reading.lines += len(reading.taken)
        reading.taken = []
        if not reading.file.peek(1):  # type: ignore[attr-defined]  # a buffered reader
            self._end(name)

    async def give_back(self, name: str) -> None:
        if (reading := self._reading.pop(name, None)) is not None:
            reading.close()

    async def delete(self, name: str) -> None:
        """Move the files to `done/` instead of deleting them: they belong to people."""
        if (lock := self._locked(self.folder(name))) is None:
            return
        try:
            for path in list(self._files(name)):
                self._set_aside(path)
        finally:
            os.close(lock)

    async def close(self) -> None:
        for reading in self._reading.values():
            reading.close()
        self._reading.clear()

    def _files(self, name: str) -> Iterator[Path]:
        """The files in the folder, oldest first."""
        folder, found = self.folder(name), list[tuple[float, str, Path]]()
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name.endswith(UNFINISHED) or str(entry.path) in self._warned:
                    continue
                # No symlinks: dead letters would show lines of a file that the sender cannot read.
                if entry.is_file(follow_symlinks=False):
                    found.append((entry.stat().st_mtime, entry.name, Path(entry.path)))
        yield from (path for _, _, path in sorted(found))

    def _begin(self, name: str) -> _Reading | None:
        """Open the next complete file, unless another process takes from this folder."""
        if next(self._files(name), None) is None or (lock := self._locked(self.folder(name))) is None:
            return None
        for path in self._files(name):
            try:
                if 0 <= self._clock() - path.stat().st_mtime < QUIET_SECONDS:
                    continue
                file = path.open("rb")
            except OSError as error:
                self._complain(path, f"it cannot be read: {line_of(error)}")
                continue
            if not (refusal := other_format(beginning_of(file))):
                return _Reading(path, file, lock)
            file.close()
            self._complain(path, f"nothing is taken from it: {refusal}")
        os.close(lock)
        return None

    def _end(self, name: str) -> None:
        """Move a file to `done/`: all its lines are in the frontier."""
        reading = self._reading.pop(name)
        self._set_aside(reading.path, taken=reading.file)
        reading.close()

    def _set_aside(self, path: Path, *, taken: BinaryIO | None = None) -> None:
        done = path.parent / DONE
        try:
            if taken is not None and not _is_same(path, taken):
                # A new file of this name has replaced it: that is taken next.
                return
            done.mkdir(exist_ok=True)
            moved = path.rename(_free(done / path.name))
            if taken is not None and not _is_same(moved, taken):
                moved.rename(_free(path))
            elif taken is not None:
                self._done[moved] = taken.tell()
        except FileNotFoundError:
            return
        except OSError as error:
            # Complains once: `_files` skips the file from now on.
            self._complain(path, f"it was taken in, but cannot be moved to {DONE}/: {line_of(error)}")

    def _complain_of_growth(self) -> None:
        """Complain of programs that append to files that were taken: nobody reads the new lines."""
        for path, size in list(self._done.items()):
            with contextlib.suppress(OSError):
                if path.stat().st_size > size:
                    self._complain(
                        path,
                        "it has grown since it was taken in, and its new lines are not read: move whole"
                        " files in, under names that end with .part until then",
                    )
                    del self._done[path]
        while len(self._done) > MOST_WATCHED:
            del self._done[next(iter(self._done))]

    def _locked(self, folder: Path) -> int | None:
        """Lock a folder; the system releases the lock when the process ends or dies. None: it is locked or missing."""
        try:
            lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._complain(folder, f"nothing is taken from it: {line_of(error)}")
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return None
        return lock

    def _count(self, name: str) -> int:
        reading, number = self._reading.get(name), 0
        for path in self._files(name):
            with contextlib.suppress(OSError), path.open("rb") as file:
                number += sum(1 for _ in _entries(file, None))
            if reading is not None and reading.path == path:
                number -= reading.lines
        return max(0, number)

    def _complain(self, path: Path, problem: str) -> None:
        if str(path) not in self._warned:
            self._warned.add(str(path))
            _LOG.warning("%s: %s", path, problem)


def _entries(file: BinaryIO, limit: int | None) -> Iterator[bytes]:
    """The next lines without comments, up to `limit` lines and about the size of a batch."""
    number = size = 0
    for line in lines_in(file):
        entry = line.strip()
        if entry and not entry.startswith(b"#"):
            number, size = number + 1, size + len(entry)
            yield entry
        if limit is not None and (number >= limit or size >= MAX_TAKEN_BYTES):
            return


def _is_same(path: Path, opened: BinaryIO) -> bool:
    return os.path.samestat(path.stat(), os.fstat(opened.fileno()))


def _free(path: Path) -> Path:
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}.{number}")
    return found


def _file_name(name: str) -> str:
    """The name as a folder's name that cannot lead to another folder."""
    return quote(name, safe=" ").replace(".", "%2E") if name.startswith(".") else quote(name, safe=" ")
