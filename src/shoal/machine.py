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
    """Whether this machine has a process of that number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
