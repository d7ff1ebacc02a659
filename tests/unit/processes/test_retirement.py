"""When a worker process retires, and when it has had no work for long enough."""

from __future__ import annotations

import asyncio

import pytest

from shoal.errors import UsageError
from shoal.settings.table import Settings
from shoal.worker.retirement import Idleness, Limits, Retirement, Shutdown

MB = 1_000_000


class Process:
    """A process with so much memory and so many pages in hand, at a time that does not pass."""

    def __init__(self, **limits: float) -> None:
        self.now, self.memory, self.in_hand = 100.0, 50 * MB, 0
        self.retirement = Retirement(
            Limits(**limits),  # type: ignore[arg-type] -- the tests know their types
            in_hand=lambda: self.in_hand,
            monotonic=lambda: self.now,
            resident=lambda: self.memory,
        )


def test_a_process_retires_after_its_last_page() -> None:
    process = Process(pages=5)
    process.retirement.settled(4)
    assert not process.retirement.due.is_set()
    assert process.retirement.pages_left(asked=0) == 1
    process.retirement.settled(1)
    assert process.retirement.due.is_set()
    assert (process.retirement.reason, process.retirement.pages_left(asked=0)) == ("after 5 pages", 0)


def test_a_process_retires_when_its_time_is_over() -> None:
    process = Process(seconds=60.0)
    process.now += 59.0
    process.retirement.check()
    assert not process.retirement.due.is_set()
    process.now += 1.0
    process.retirement.check()
    assert process.retirement.reason == "after 60 s"


def test_a_process_retires_with_too_much_memory_once_it_has_done_a_page() -> None:
    process = Process(memory=100 * MB)
    process.memory = 101 * MB
    process.retirement.check()
    assert not process.retirement.due.is_set()
    process.retirement.settled(1)
    assert process.retirement.reason == "with 101 MB of memory after 1 page"


def test_a_limit_below_what_a_worker_has_without_pages_is_refused() -> None:
    with pytest.raises(UsageError, match=r"50 MB before its first page; give it more"):
        Process(memory=20 * MB).retirement.check_memory()
    Process(memory=60 * MB).retirement.check_memory()
    Process().retirement.check_memory()


def test_without_limits_a_process_goes_on() -> None:
    process = Process()
    process.now, process.memory = 1e9, 10**12
    process.retirement.settled(10**9)
    assert not process.retirement.due.is_set()
    assert process.retirement.pages_left(asked=5) > 10**6


def test_the_strictest_limits_of_several_spiders_hold_and_a_flag_goes_before_them() -> None:
    first = Limits.of(Settings(worker_max_pages=1000, worker_max_memory="500MB"))
    second = Limits.of(Settings(worker_max_pages=200, worker_max_seconds="6h"))
    strictest = Limits.strictest([first, second, Limits()])
    assert strictest == Limits(pages=200, seconds=21_600.0, memory=500 * MB)
    assert strictest.unless_told(pages=0, seconds=None, memory=None) == Limits(0, 21_600.0, 500 * MB)
    assert Limits.strictest([]) == Limits()


async def test_pages_are_finished_when_the_process_retires_however_long_they_take() -> None:
    process, stop, page = Process(pages=1), asyncio.Event(), asyncio.Event()
    working = asyncio.create_task(page.wait())
    process.retirement.settled(1)
    shutdown = Shutdown(stop, process.retirement)
    await shutdown.watch()
    finishing = asyncio.create_task(shutdown.finish([working], grace_seconds=0.0))
    await asyncio.sleep(0.01)
    assert not finishing.done()
    page.set()
    async with asyncio.timeout(10):
        await finishing
    assert working.done()


async def test_a_signal_while_the_process_retires_leaves_the_time_of_grace() -> None:
    process, stop = Process(pages=1), asyncio.Event()
    working = asyncio.create_task(asyncio.Event().wait())
    process.retirement.settled(1)
    shutdown = Shutdown(stop, process.retirement)
    finishing = asyncio.create_task(shutdown.finish([working], grace_seconds=0.0))
    await asyncio.sleep(0.01)
    stop.set()
    async with asyncio.timeout(10):
        await finishing
    assert not working.done()
    working.cancel()


def test_a_process_is_idle_after_so_long_without_pages() -> None:
    now = 100.0
    idleness = Idleness(5.0, monotonic=lambda: now)

    def is_over(*, in_hand: int = 0, pages: int = 0) -> bool:
        return idleness.is_over(in_hand=in_hand, pages=pages, within=2.0)

    now += 4.0
    assert not is_over()
    now += 1.0
    assert is_over()
    assert not is_over(in_hand=1)
    now += 4.0
    assert not is_over(pages=3)
    now += 4.0
    assert not is_over(pages=3)
    now += 1.0
    assert is_over(pages=3)
    # For so long the frontier did not answer: that is no lack of work.
    now += 60.0
    assert not is_over(pages=3)


def test_a_process_without_such_a_limit_is_never_idle() -> None:
    now = 100.0
    idleness = Idleness(0.0, monotonic=lambda: now)
    now += 4.0
    assert not idleness.is_over(in_hand=0, pages=0, within=10.0)
