"""This machine and this process: names, running processes, cores, memory, garbage collection."""

from __future__ import annotations

import ctypes
import gc
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

KEPT_BYTES = 64 * 1024 * 1024
NEW_OBJECTS = 20_000
LARGE_BYTES = 4 * 1024 * 1024
_TRIM_THRESHOLD = -1  # glibc's numbers for mallopt
_MMAP_THRESHOLD = -3
_SET_THP_DISABLE = 41  # Linux's number for prctl


def this_machine() -> str:
    """A name that only processes which see each other's process ids have in common.

    The host name is not enough: copies of one image share it, and every container has its own process ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def usable_cores() -> int:
    """The cores that this process may use, by its CPU affinity and its container's limit."""
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
    # A zombie: in a container its parent may never read its return code.
    return _state(pid) != "Z"


def _state(pid: int) -> str:
    """The state of a process as one letter; empty if the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The process name before the state may contain anything, also brackets and spaces.
    return "".join(stat.rpartition(")")[2].split()[:1])


def worker_name(pid: int) -> str:
    """A unique name: host, process id and a random part."""
    return f"{socket.gethostname()}:{pid}:{os.urandom(3).hex()}"


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger: silent, but not hung."""
    return _state(pid) in ("T", "t")


def collect_rarely() -> None:
    """Collect garbage after every 20,000 new objects instead of 700, and never among the objects that exist now.

    A page makes a few hundred objects and hardly a cycle: collecting took 1 % of a worker's time."""
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, 10, 10)


def spare_existing_objects() -> None:
    """Exclude the objects that exist now from garbage collection, once, in a process that also runs other code.

    Scrapy and its libraries are 100,000 objects: collecting among them took a tenth of a Scrapy process's time. Not for
    a second crawl of the process: the objects of the first one will be garbage."""
    if gc.isenabled() and not gc.get_freeze_count():
        # Young garbage must not be frozen. Older generations have been collected already.
        gc.collect(1)
        gc.freeze()


def keep_freed_memory() -> None:
    """Let glibc keep the memory of a page's tree for the next page.

    By default it returns the memory to the system after each page and asks for it again at the next one: on the
    benchmark's site that took a quarter of a worker's CPU time."""
    mallopt = _of_libc("mallopt")
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, LARGE_BYTES)


def take_small_pages() -> None:
    """Disable huge memory pages for this process and its children.

    The HTTP client's allocator asks for them: for the 3 MiB that 64 connections use it then takes 8 to 10, and fetching
    needs no less CPU."""
    prctl = _of_libc("prctl")
    if prctl is not None:
        prctl(_SET_THP_DISABLE, 1, 0, 0, 0)


def _of_libc(name: str) -> Callable[..., int] | None:
    """A function of Linux's C library; None: it has none of this name."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):
        return None
    return found


def resident_bytes() -> int:
    """The memory of this process; 0 if the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
