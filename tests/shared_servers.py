"""Servers that the test processes of a run share: the first that needs one starts it, and ends it after the others."""

from __future__ import annotations

import contextlib
import copy
import fcntl
import pickle
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final, TypeVar

T = TypeVar("T")
_USED: Final[list[IO[str]]] = []
_STARTED: Final[list[tuple[Path, Callable[[], None]]]] = []


def shared(folder: Path, name: str, start: Callable[[], T], end: Callable[[T], None]) -> T:
    """The run's server of this name; `folder` is the same for all processes of the run."""
    with _locked(folder, name):
        users = (folder / f"{name}.users").open("w")
        fcntl.flock(users, fcntl.LOCK_SH)
        _USED.append(users)
        known = folder / f"{name}.server"
        if known.exists():
            found: T = pickle.loads(known.read_bytes())
            return found
        server = start()
        known.write_bytes(pickle.dumps(_without_processes(server)))
        _STARTED.append((known, lambda: end(server)))
        return server


def end_servers() -> None:
    """End the servers that this process has started, each when no other process uses it any more."""
    # All are given up before any is waited for: two processes may each use what the other one has started.
    while _USED:
        _USED.pop().close()
    while _STARTED:
        known, end = _STARTED.pop()
        with known.with_suffix(".users").open("w") as users:
            fcntl.flock(users, fcntl.LOCK_EX)
            with _locked(known.parent, known.stem):
                known.unlink()
        end()


@contextlib.contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _without_processes(server: Any) -> Any:
    """The server as others know it: where it is, without the processes that only its starter can end."""
    seen = copy.copy(server)
    for name, value in vars(server).items():
        if isinstance(value, subprocess.Popen):
            setattr(seen, name, None)
    return seen
