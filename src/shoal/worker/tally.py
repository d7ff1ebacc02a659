"""What a worker has done and what it cost: the figures in its heartbeats."""

from __future__ import annotations

import sys
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from shoal.fetch.base import Fault, Fetch, Fetcher, Response
from shoal.journey.cpu_shares import CpuShares
from shoal.model import FETCH_BUCKETS, Figures

T = TypeVar("T")
STORE_THREADS = ("shoal-store", "shoal-files")
FAULT = "fault"
WINDOW_SECONDS = 60.0


class Calls:
    """The number of calls of one kind, and their total time until an answer or an error."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.number = 0
        self.seconds = 0.0

    async def timed(self, call: Awaitable[T]) -> T:
        """Await a call and count it."""
        began = self._clock()
        try:
            return await call
        finally:
            self.number += 1
            self.seconds += self._clock() - began


class Stopwatch:
    """The total time of something that begins and ends repeatedly."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None
        self._ended = 0.0

    @property
    def seconds(self) -> float:
        return self._ended + (0.0 if self._since is None else self._clock() - self._since)

    def begin(self) -> None:
        """Start, unless it runs already."""
        if self._since is None:
            self._since = self._clock()

    def end(self) -> None:
        """Stop, if it runs."""
        self._ended, self._since = self.seconds, None


class Tally:
    """Counts for one worker on one crawl. `waiting_for_slots` runs while more slots would start more requests; `shares`
    estimates the CPU time per page."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, shares: CpuShares | None = None) -> None:
        self.shares = shares or CpuShares()
        self.leases = Calls(clock)
        self.settles = Calls(clock)
        self.writes = Calls(clock)
        self.waiting_for_slots = Stopwatch(clock)
        self.store_cpu = 0.0
        self._cpu_before = time.process_time()
        self._times = [0] * (len(FETCH_BUCKETS) + 1)
        self._seconds = self._body_seconds = 0.0
        self._bytes = 0
        self._statuses = [0] * 6
        self._page_requests = self._page_refused = 0

    def fetched(self, answer: Response | Fault) -> None:
        """A request has ended."""
        elapsed = answer.elapsed
        self._seconds += elapsed
        self._times[bisect_left(FETCH_BUCKETS, elapsed)] += 1
        if type(answer) is Response:
            self._bytes += answer.wire_size
            self._body_seconds += answer.body_elapsed
            kind = answer.status // 100
            # An invalid status counts as a fault.
            self._statuses[kind if 0 < kind < len(self._statuses) else 0] += 1
        else:
            self._statuses[0] += 1

    def rendered(self, answer: Response | Fault) -> None:
        """Rendering a page has ended: count the requests that the page itself has sent."""
        self._page_requests += answer.page_requests
        self._page_refused += answer.page_refused

    async def written(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a write of the store; count its time, and its CPU time in this thread and in the store's threads."""
        before = store_threads_seconds()
        try:
            return await self.writes.timed(_Metered(work, self))
        finally:
            self.store_cpu += max(0.0, store_threads_seconds() - before)

    def figures(self) -> Figures:
        """The totals so far."""
        named = {f"{kind}xx": number for kind, number in enumerate(self._statuses)}
        named[FAULT] = named.pop("0xx")
        return Figures(
            fetches=sum(self._times),
            fetch_seconds=self._seconds,
            fetch_times=tuple(self._times),
            body_seconds=self._body_seconds,
            received_bytes=self._bytes,
            statuses={name: number for name, number in named.items() if number},
            lease_calls=self.leases.number,
            lease_seconds=self.leases.seconds,
            settles=self.settles.number,
            settle_seconds=self.settles.seconds,
            writes=self.writes.number,
            write_seconds=self.writes.seconds,
            cpu_seconds=time.process_time() - self._cpu_before,
            parse_cpu=self.shares.parse,
            handler_cpu=self.shares.handler,
            store_cpu=self.store_cpu,
            waiting_for_slots=self.waiting_for_slots.seconds,
            page_requests=self._page_requests,
            page_refused=self._page_refused,
        )


class CountedFetcher:
    """Wraps a `Fetcher` and counts its answers."""

    def __init__(self, fetcher: Fetcher, tally: Tally) -> None:
        self._fetcher = fetcher
        self._tally = tally

    async def fetch(self, request: Fetch) -> Response | Fault:
        answer = await self._fetcher.fetch(request)
        self._tally.fetched(answer)
        if request.render is not None:
            self._tally.rendered(answer)
        return answer

    async def close(self) -> None:
        await self._fetcher.close()


class _Metered(Generic[T]):
    """Awaits a coroutine of the store and sums the CPU time of its steps in this thread."""

    def __init__(self, work: Coroutine[Any, Any, T], tally: Tally) -> None:
        self._work = work
        self._tally = tally

    def __await__(self) -> Generator[Any, Any, T]:
        step: Callable[[Any], Any] = self._work.send
        value: Any = None
        while True:
            began = time.thread_time()
            try:
                waited_for = step(value)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # what the coroutine gives
            finally:
                self._tally.store_cpu += time.thread_time() - began
            try:
                value = yield waited_for
                step = self._work.send
            except BaseException as error:
                value, step = error, self._work.throw


def store_threads_seconds() -> float:
    """The CPU time so far of the threads in which stores of this process write; 0 if the system does not say."""
    if sys.platform != "linux":
        return 0.0
    return sum(_thread_seconds(thread.native_id or 0) for thread in threading.enumerate() if _is_of_store(thread))


def _is_of_store(thread: threading.Thread) -> bool:
    return thread.name.startswith(STORE_THREADS)


def _thread_seconds(native_id: int) -> float:
    # The kernel's number for the clock of a thread. pthread_getcpuclockid may crash for a thread that has just ended.
    try:
        return time.clock_gettime((~native_id << 3) | 6)
    except OSError:
        return 0.0


def cpu_seconds_needed() -> float:
    """CPU time of this process plus, on Linux, the time that its main thread waited for a core: on a busy machine a
    process that needs a whole core gets less."""
    try:
        with open("/proc/self/schedstat", encoding="ascii") as file:
            return time.process_time() + int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return time.process_time()


class RecentRate:
    """The growth of a count per second, over the last minute at most."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, int]] = deque()

    def __bool__(self) -> bool:
        return bool(self._readings)

    def read(self, now: float, count: int) -> float:
        """Add a reading."""
        self._readings.append((now, count))
        while len(self._readings) > 2 and now - self._readings[0][0] > WINDOW_SECONDS:
            self._readings.popleft()
        then, before = self._readings[0]
        return (count - before) / (now - then) if now > then else 0.0


class CpuLoad:
    """The CPU that this process needed between two readings; 1.0 is one core."""

    def __init__(
        self, *, needed: Callable[[], float] = cpu_seconds_needed, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._needed = needed
        self._clock = clock
        self._last = (clock(), needed())

    def read(self) -> float:
        """The load since the last reading."""
        (then, before), (now, needed) = self._last, (self._clock(), self._needed())
        self._last = (now, needed)
        return (needed - before) / (now - then) if now > then else 0.0
