"""How much memory this process has, how it takes and keeps it, and how often it collects garbage."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable

KEPT_BYTES = 64 * 1024 * 1024
NEW_OBJECTS = 20_000
LARGE_BYTES = 4 * 1024 * 1024
_TRIM_THRESHOLD = -1  # glibc's numbers for mallopt
_MMAP_THRESHOLD = -3
_SET_THP_DISABLE = 41  # Linux's number for prctl


def collect_rarely() -> None:
    """Look for cycles after every 20,000 new objects instead of 700, and never among the objects that exist now.

    A page makes a few hundred objects and hardly a cycle: looking for them took 1 % of a worker's time."""
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, 10, 10)


def spare_existing_objects() -> None:
    """Never look for cycles among the objects that exist now, in a process that is not all ours.

    Scrapy and its libraries are 100,000 objects: looking through them took a tenth of a Scrapy process's time. A second
    crawl of the process changes nothing: what the first one holds is in use, and must be looked at one day."""
    if gc.isenabled() and not gc.get_freeze_count():
        # Garbage must not stay. Of older objects little is: the collector has been through them since they were young.
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
    """Let the system give memory in pages of 4 kB, to this process and those that it starts.

    The HTTP client's allocator asks for huge ones: for the 3 MiB that 64 connections use it then has 8 to 10, in steps
    of 2, and no page was fetched with less CPU."""
    prctl = _of_libc("prctl")
    if prctl is not None:
        prctl(_SET_THP_DISABLE, 1, 0, 0, 0)


def _of_libc(name: str) -> Callable[..., int] | None:
    """A function that the C library of Linux may have."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):
        return None
    return found


def resident_bytes() -> int:
    """The memory of this process; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
