"""When a worker process has done enough and leaves its place to a new one, so that what handlers leak goes with it.

How much memory this process has, how it takes and keeps it, and how often it collects garbage.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from shoal.errors import UsageError
from shoal.settings.table import Settings
from shoal.settings.values import parse_duration, parse_size
from shoal.text.errors import several

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


LOOK_SECONDS: Final = 1.0
MEGABYTE: Final = 1_000_000
UNLIMITED: Final = 2**31
# A look at the crawls that took so much longer than planned: the frontier was away, which is no lack of work.
LATE_SECONDS: Final = 5.0


class Limits(NamedTuple):
    """After how many pages and seconds, and with how many bytes of memory a worker process retires; 0: never."""

    pages: int = 0
    seconds: float = 0.0
    memory: int = 0

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """Those that a spider's settings name."""
        seconds, memory = parse_duration(settings.worker_max_seconds), parse_size(settings.worker_max_memory)
        return cls(settings.worker_max_pages, seconds, memory)

    @classmethod
    def strictest(cls, many: list[Limits]) -> Limits:
        """Of the limits of several spiders in one process."""
        pages, seconds, memory = (
            ([value for value in values if value] for values in zip(*many, strict=True)) if many else ([], [], [])
        )
        return cls(int(min(pages, default=0)), float(min(seconds, default=0)), int(min(memory, default=0)))

    def unless_told(self, *, pages: int | None, seconds: float | None, memory: int | None) -> Limits:
        """These, where the process was not told others."""
        return Limits(
            self.pages if pages is None else pages,
            self.seconds if seconds is None else seconds,
            self.memory if memory is None else memory,
        )


class Retirement:
    """Counts what a process does. `due` is set when it has reached a limit: it then leases nothing more, finishes the
    pages in hand and ends; `reason` says which limit, as the end of a sentence. It is empty if the process ends for
    good."""

    def __init__(
        self,
        limits: Limits,
        *,
        in_hand: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        self._limits = limits
        self._in_hand = in_hand
        self._monotonic = monotonic
        self._resident = resident
        self._began = monotonic()
        self.pages = 0
        self.due = asyncio.Event()
        self.reason = ""

    def check_memory(self) -> None:
        """Refuse a limit that the process is above before it has a page: each one after it would be as well."""
        memory = self._resident()
        if 0 < self._limits.memory < memory:
            raise UsageError(
                f"max-memory {_megabytes(self._limits.memory)}: a worker of this spider has {_megabytes(memory)} before"
                " its first page; give it more"
            )

    def pages_left(self, *, asked: int) -> int:
        """How many pages more may be leased, when so many are asked for already."""
        if self.due.is_set():
            return 0
        if not self._limits.pages:
            return UNLIMITED
        return self._limits.pages - self.pages - self._in_hand() - asked

    def settled(self, pages: int) -> None:
        """The frontier has taken the results of so many pages."""
        self.pages += pages
        self.look()

    def look(self) -> None:
        """See whether a limit is reached."""
        limits = self._limits
        if self.due.is_set():
            return
        if 0 < limits.pages <= self.pages:
            self._retire(f"after {several(self.pages, 'page')}")
        elif 0 < limits.seconds <= self._monotonic() - self._began:
            self._retire(f"after {limits.seconds:g} s")
        # Not before a page is done: where none can be done within the limit, worker after worker would do none.
        elif limits.memory and self.pages and (memory := self._resident()) > limits.memory:
            self._retire(f"with {_megabytes(memory)} of memory after {several(self.pages, 'page')}")

    def leave(self) -> None:
        """The process ends for good."""
        self.due.set()

    async def watch(self) -> None:
        """Look every second, until it is due."""
        while not self.due.is_set():
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def _retire(self, reason: str) -> None:
        self.reason = reason
        self.due.set()


class Idleness:
    """How long a process has had no work; `seconds`: after how many it ends, 0: never."""

    def __init__(self, seconds: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._monotonic = monotonic
        self._since = self._looked = monotonic()
        self._pages = 0

    def is_over(self, *, in_hand: int, pages: int, within: float) -> bool:
        """Whether it has had none for long enough; `pages` are those done so far, and a look comes `within` so many
        seconds of the one before."""
        now = self._monotonic()
        if in_hand or pages != self._pages or now - self._looked > within + LATE_SECONDS:
            self._since = now
        self._looked, self._pages = now, pages
        return 0 < self.seconds <= now - self._since


class Leaving:
    """When a worker is to leave its crawl: people told it to stop, and its pages have a time of grace; or its process
    retires, and its pages are finished."""

    def __init__(self, stop: asyncio.Event, retirement: Retirement | None) -> None:
        self.is_due = asyncio.Event()
        self._stop = stop
        self._retirement = retirement

    async def watch(self) -> None:
        """Set `is_due` at the first of both."""
        waiting = [asyncio.create_task(self._stop.wait())]
        if self._retirement is not None:
            waiting.append(asyncio.create_task(self._retirement.due.wait()))
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            self.is_due.set()
        finally:
            for one in waiting:
                one.cancel()

    async def finish(self, pages: Sequence[asyncio.Task[Any]], *, grace_seconds: float) -> None:
        """Wait for pages in hand, as long as they may take."""
        if pages and self._retirement is not None and self._retirement.due.is_set() and not self._stop.is_set():
            stopped = asyncio.create_task(self._stop.wait())
            finished = asyncio.create_task(asyncio.wait(pages))
            await asyncio.wait([stopped, finished], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            finished.cancel()
        left = [page for page in pages if not page.done()]
        if left:
            await asyncio.wait(left, timeout=grace_seconds)


def _megabytes(size: int) -> str:
    return f"{size / MEGABYTE:,.0f} MB"
