"""A separate time of day for a server that a test starts, by the library libfaketime."""

from __future__ import annotations

import os
import time
from pathlib import Path

from shoal.testing.servers.programs import missing

LIBRARY = "faketime/libfaketime.so.1"


class SteppedClock:
    """The clock of one process: the real time plus all steps; monotonic clocks do not change. Skips the test if the
    library is missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._library = _library()
        self._offset = 0.0

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the process. The C library is preloaded first: an allocator that reads the time before
        libfaketime is ready would hang."""
        self._write()
        return {
            "LD_PRELOAD": f"{self._library}:libc.so.6",
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            # Else Python threads that wait for a lock by the monotonic clock would spin.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def time(self) -> float:
        """The time of day of the process, for a process without the library."""
        return time.time() + self._offset

    def step(self, seconds: float) -> None:
        """Set the clock forward, or back if `seconds` is negative."""
        self._offset += seconds
        self._write()

    def _write(self) -> None:
        # Replaced atomically: a half-written number would be another time.
        self._path.parent.mkdir(parents=True, exist_ok=True)
        written = self._path.with_suffix(".new")
        written.write_text(f"{self._offset:+.6f}\n", encoding="ascii")
        os.replace(written, self._path)


def is_installed() -> bool:
    """Whether the library is installed."""
    return bool(_found())


def _library() -> str:
    return _found() or missing("faketime")


def _found() -> str:
    for folder in ("/usr/lib", "/usr/lib64", "/usr/local/lib"):
        for pattern in (LIBRARY, f"*/{LIBRARY}"):
            for path in sorted(Path(folder).glob(pattern)):
                return str(path)
    return ""
