"""Which machine this is, which processes run on it, and names for its workers."""

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


def usable_cores() -> int:
    """The cores that this process may use: those it may run on, and no more than its container is given."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return int(cores)


def is_running(pid: int) -> bool:
    """Whether a process with this id runs on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # A process that has exited and only waits for its parent to notice: in a container that may never happen.
    return _state(pid) != "Z"


def _state(pid: int) -> str:
    """The state of a process as one letter; empty where the system does not tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The process name before the state may contain anything, also brackets and spaces.
    return "".join(stat.rpartition(")")[2].split()[:1])


def worker_name(pid: int) -> str:
    """A name that no other worker has: host, process id and a random part."""
    return f"{socket.gethostname()}:{pid}:{os.urandom(3).hex()}"


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger: it is silent and not hung."""
    return _state(pid) in ("T", "t")
