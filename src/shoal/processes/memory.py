"""How much memory this process has, how it keeps what is freed, and how often it collects garbage."""

from __future__ import annotations

import ctypes
import gc
import os
import sys

KEPT_BYTES = 64 * 1024 * 1024
NEW_OBJECTS = 20_000
LARGE_BYTES = 4 * 1024 * 1024
_TRIM_THRESHOLD = -1  # glibc's numbers for mallopt
_MMAP_THRESHOLD = -3


def collect_rarely() -> None:
    """Look for cycles after every 20,000 new objects instead of 700, and never among the objects that exist now.

    A page makes a few hundred objects and hardly a cycle: looking for them took 1 % of a worker's time."""
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, 10, 10)


def keep_freed_memory() -> None:
    """Let glibc keep the memory of a page's tree for the next page.

    By default it returns the memory to the system after each page and asks for it again at the next one: on the
    benchmark's site that took a quarter of a worker's CPU time."""
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # another C library
    mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, LARGE_BYTES)


def resident_bytes() -> int:
    """The memory of this process; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
