"""How this process deals with memory."""

from __future__ import annotations

import ctypes
import gc
import sys

KEPT_BYTES = 64 * 1024 * 1024
NEW_OBJECTS = 20_000
LARGE_BYTES = 4 * 1024 * 1024
_TRIM_THRESHOLD = -1  # glibc's numbers for mallopt
_MMAP_THRESHOLD = -3


def collect_rarely() -> None:
    """Look for cycles after every 20,000 new objects instead of 700, and never among those that are there now.

    A page makes some hundred objects and hardly a cycle: 1 % of a worker's time went into looking."""
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, 10, 10)


def keep_freed_memory() -> None:
    """Let glibc keep what a page's tree freed for the next page.

    Left alone it gives the memory back to the system after each page and asks for it again at the next: a quarter
    of a worker's CPU time went into that on the benchmark's site."""
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # another C library
    mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
