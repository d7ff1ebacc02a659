"""Which machine this is, and whether a process runs on it."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_machine() -> str:
    """A name that is the same for all processes that can see each other's process ids, and for no others.

    The host name is not enough: copies of one image share it, and every container has process ids of its own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def is_running(pid: int) -> bool:
    """Whether a process with this id runs on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether the process has exited and only waits for its parent to notice: in a container that may never happen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    # The process name before the state may contain anything, also brackets and spaces.
    return stat.rpartition(")")[2].split()[:1] == ["Z"]
