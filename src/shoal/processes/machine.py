"""Which machine this is, as far as process numbers go."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_machine() -> str:
    """The same for all processes that can see each other's numbers, and for no others.

    A host's name is not enough: copies of one image share it, and containers number their processes anew."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def is_running(pid: int) -> bool:
    """Whether this machine has a process of that number at work."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether the process is dead and only waits for its parent to notice: in a container it may wait for ever."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    # The name in front of the state may hold anything, brackets and spaces included.
    return stat.rpartition(")")[2].split()[:1] == ["Z"]
