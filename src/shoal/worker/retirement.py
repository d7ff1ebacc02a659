"""When a worker process has done enough and a new one takes its place, so that memory leaks of handlers go with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from shoal.errors import UsageError
from shoal.settings.table import Settings
from shoal.settings.values import parse_duration, parse_size
from shoal.text.errors import several
from shoal.worker.machine import resident_bytes

LOOK_SECONDS: Final = 1.0
MEGABYTE: Final = 1_000_000
UNLIMITED: Final = 2**31
# If a reading of the crawls comes this late, the frontier was unreachable: that is no lack of work.
LATE_SECONDS: Final = 5.0


class Limits(NamedTuple):
    """The pages, seconds and bytes of memory after which a worker process retires; 0: never."""

    pages: int = 0
    seconds: float = 0.0
    memory: int = 0

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """The limits in a spider's settings."""
        seconds, memory = parse_duration(settings.worker_max_seconds), parse_size(settings.worker_max_memory)
        return cls(settings.worker_max_pages, seconds, memory)

    @classmethod
    def strictest(cls, many: list[Limits]) -> Limits:
        """The lowest limit of each kind, of several spiders in one process."""
        pages, seconds, memory = (
            ([value for value in values if value] for values in zip(*many, strict=True)) if many else ([], [], [])
        )
        return cls(int(min(pages, default=0)), float(min(seconds, default=0)), int(min(memory, default=0)))

    def unless_told(self, *, pages: int | None, seconds: float | None, memory: int | None) -> Limits:
        """These limits, except those that the command line names."""
        return Limits(
            self.pages if pages is None else pages,
            self.seconds if seconds is None else seconds,
            self.memory if memory is None else memory,
        )


class Retirement:
    """Sets `due` when the process has reached a limit: it then leases nothing more, finishes the pages in hand and
    ends. `reason` says which limit, as the end of a sentence; empty: no new process takes its place."""

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
        """Refuse a memory limit that the process exceeds before its first page: each new one would, too."""
        memory = self._resident()
        if 0 < self._limits.memory < memory:
            raise UsageError(
                f"max-memory {_megabytes(self._limits.memory)}: a worker of this spider has {_megabytes(memory)} before"
                " its first page; give it more"
            )

    def pages_left(self, *, asked: int) -> int:
        """How many more pages may be leased; `asked`: pages in open lease calls."""
        if self.due.is_set():
            return 0
        if not self._limits.pages:
            return UNLIMITED
        return self._limits.pages - self.pages - self._in_hand() - asked

    def settled(self, pages: int) -> None:
        """The frontier has settled so many pages."""
        self.pages += pages
        self.check()

    def check(self) -> None:
        """Retire if a limit is reached."""
        limits = self._limits
        if self.due.is_set():
            return
        if 0 < limits.pages <= self.pages:
            self._retire(f"after {several(self.pages, 'page')}")
        elif 0 < limits.seconds <= self._monotonic() - self._began:
            self._retire(f"after {limits.seconds:g} s")
        # Not before a page is done: otherwise each new worker could retire without doing any.
        elif limits.memory and self.pages and (memory := self._resident()) > limits.memory:
            self._retire(f"with {_megabytes(memory)} of memory after {several(self.pages, 'page')}")

    def leave(self) -> None:
        """The process ends, and no new one takes its place."""
        self.due.set()

    async def watch(self) -> None:
        """Check the limits every second, until one is reached."""
        while not self.due.is_set():
            self.check()
            await asyncio.sleep(LOOK_SECONDS)

    def _retire(self, reason: str) -> None:
        self.reason = reason
        self.due.set()


class Idleness:
    """How long a process has had no work; it ends after `seconds`, 0: never."""

    def __init__(self, seconds: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._monotonic = monotonic
        self._since = self._looked = monotonic()
        self._pages = 0

    def is_over(self, *, in_hand: int, pages: int, within: float) -> bool:
        """Whether it has had no work for long enough. `pages`: done so far; `within`: the longest planned time since
        the last call."""
        now = self._monotonic()
        if in_hand or pages != self._pages or now - self._looked > within + LATE_SECONDS:
            self._since = now
        self._looked, self._pages = now, pages
        return 0 < self.seconds <= now - self._since


class Shutdown:
    """When a worker leaves its crawl: on `stop` its pages have a grace period, on retirement they are finished."""

    def __init__(self, stop: asyncio.Event, retirement: Retirement | None) -> None:
        self.is_due = asyncio.Event()
        self._stop = stop
        self._retirement = retirement

    async def watch(self) -> None:
        """Set `is_due` on stop or retirement, whichever is first."""
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
        """Wait for the pages in hand: without limit on retirement, for the grace period on stop."""
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
