"""The processes of a browser below this one, as Linux tells of them. Elsewhere nothing is known of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
RENDERER: Final = b"--type=renderer"


def processes_below(pid: int) -> list[int]:
    """The processes that descend from this one."""
    children: dict[int, list[int]] = {}
    for process, parent in _parents():
        children.setdefault(parent, []).append(process)
    found: list[int] = []
    waiting = list(children.get(pid, ()))
    while waiting:
        process = waiting.pop()
        found.append(process)
        waiting += children.get(process, ())
    return found


def is_running(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # of another user
    return True


def renderers_below(pid: int) -> list[int]:
    """Those of them in which pages run."""
    return [process for process in processes_below(pid) if RENDERER in _command(process)]


def private_bytes(pid: int) -> int:
    """The memory that a process has to itself; 0 if it has ended."""
    with contextlib.suppress(OSError, ValueError):
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def _parents() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(OSError):
        for entry in PROC.iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    # The name of a process, in brackets, may hold spaces and brackets.
                    yield int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])


def _command(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""
