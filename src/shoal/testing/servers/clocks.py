"""A time of day of its own for a server that a test starts: the library libfaketime gives it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from shoal.testing.servers.programs import missing

LIBRARY = "faketime/libfaketime.so.1"


class SteppedClock:
    """The clock of one process. It runs as the real one does, with what it was stepped by added; the steady clocks of
    the process stay. A missing library skips the test."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._library = _library()
        self._offset = 0.0

    @property
    def environment(self) -> dict[str, str]:
        """What the process is started with. The C library before others: an allocator that asks for the time before
        libfaketime is ready would hang."""
        self._write()
        return {
            "LD_PRELOAD": f"{self._library}:libc.so.6",
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            # Else threads of Python that wait for each other's lock by the steady clock do not sleep but spin.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def time(self) -> float:
        """The time of day of the process, for one that shares its clock without the library."""
        return time.time() + self._offset

    def step(self, seconds: float) -> None:
        """Set the clock forward, or back when `seconds` is negative."""
        self._offset += seconds
        self._write()

    def _write(self) -> None:
        # Replaced in one step: a half-written number would be another time.
        self._path.parent.mkdir(parents=True, exist_ok=True)
        written = self._path.with_suffix(".new")
        written.write_text(f"{self._offset:+.6f}\n", encoding="ascii")
        os.replace(written, self._path)


def is_installed() -> bool:
    """Whether the library is there."""
    return bool(_found())


def _library() -> str:
    return _found() or missing("faketime")


def _found() -> str:
    for folder in ("/usr/lib", "/usr/lib64", "/usr/local/lib"):
        for pattern in (LIBRARY, f"*/{LIBRARY}"):
            for path in sorted(Path(folder).glob(pattern)):
                return str(path)
    return ""
