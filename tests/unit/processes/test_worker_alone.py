"""A worker and what may take it down: a page that is lent alone, a panic in its own code, a handler that blocks it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
from worker_in_memory import HOST, Bench, OneByOne

from shoal.fetch.base import Fetch
from shoal.frontier.rules.tasks import NO_LEASE
from shoal.model import TaskState
from shoal.testing.fakes import Answer, ScriptedFetcher, task_for
from shoal.testing.waiting import eventually, loop_turns, wait_until
from shoal.worker.black_box import BlackBox
from shoal.worker.deaths import death_of
from shoal.worker.renewals import Renewals
from shoal.worker.shared_slots import Solitude

SUSPECT = task_for(f"{HOST}/suspect")


async def bench_with_suspect(solitude: Solitude | None = None) -> tuple[Bench, OneByOne, asyncio.Task[int]]:
    """A worker with three pages in hand that has leased a suspect besides; one more page waits."""
    bench = Bench({})
    bench.fetcher = fetcher = OneByOne()
    bench.solitude = solitude or bench.solitude
    await bench.begin()
    await bench.memory.put("c", [SUSPECT])
    (lease,) = (await bench.memory.lease(["c"], 1, worker="dead", seconds=60.0, horizon=1.0)).leases
    await bench.memory.evict("dead", suspects=[lease.token], cause="SIGSEGV")
    before = [task_for(f"{HOST}/{number}", priority=1) for number in range(3)]
    await bench.memory.put("c", [*before, task_for(f"{HOST}/after", priority=-1)])
    running = asyncio.create_task(bench.run())

    async def is_lent() -> bool:
        status = await bench.memory.look_up("c", SUSPECT.key)
        return status.state is TaskState.LEASED and len(fetcher.requests) == 3

    await eventually(is_lent)
    await loop_turns()
    return bench, fetcher, running


async def test_a_page_lent_alone_begins_after_the_others_and_before_the_next() -> None:
    bench, fetcher, running = await bench_with_suspect()
    assert "/suspect" not in bench.fetched()
    for _ in range(3):
        fetcher.allowed.release()
    await eventually(lambda: len(fetcher.requests) == 4)
    await loop_turns()
    assert bench.fetched()[3:] == ["/suspect"]
    for _ in range(2):
        fetcher.allowed.release()
    assert await running == 5
    assert bench.fetched()[4:] == ["/after"]


async def test_a_page_lent_alone_is_blamed_for_a_death_from_its_beginning_until_it_is_settled() -> None:
    bench, fetcher, running = await bench_with_suspect()

    def blamed() -> list[int]:
        death = death_of(-signal.SIGKILL, bench.box.read())
        return [] if death is None else death.tokens_of("w")

    assert blamed() == [NO_LEASE]
    for _ in range(3):
        fetcher.allowed.release()
    await eventually(lambda: len(fetcher.requests) == 4)
    status = await bench.memory.look_up("c", SUSPECT.key)
    assert [page.url for page in bench.box.read().suspects] == [SUSPECT.url]
    assert await bench.memory.evict("w", suspects=blamed(), cause="SIGKILL") == 1
    assert (await bench.memory.look_up("c", SUSPECT.key)).attempts == status.attempts == 1
    for _ in range(3):
        fetcher.allowed.release()
    assert await running == 5
    assert blamed() == [NO_LEASE]


async def test_a_page_lent_alone_that_has_not_begun_costs_no_attempt_when_its_worker_dies() -> None:
    bench, _, running = await bench_with_suspect()
    death = death_of(-signal.SIGKILL, bench.box.read())
    assert death is not None
    await bench.memory.evict("w", suspects=death.tokens_of("w"), cause=death.cause)
    assert (await bench.memory.look_up("c", SUSPECT.key)).attempts == 0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_page_lent_alone_that_has_not_begun_is_released_when_the_worker_stops() -> None:
    bench, fetcher, running = await bench_with_suspect()
    bench.stop.set()
    for _ in range(3):
        fetcher.allowed.release()
    assert await running == 3
    status = await bench.memory.look_up("c", SUSPECT.key)
    assert (status.state, status.attempts) == (TaskState.QUEUED, 0)


async def test_pages_of_another_crawl_in_the_same_process_are_company() -> None:
    other = Bench({})
    other.fetcher = others_fetcher = OneByOne()
    await other.begin("/", "/later")
    other.settings = msgspec.structs.replace(other.settings, concurrency=1)
    elsewhere = asyncio.create_task(other.run())
    await eventually(lambda: other.fetched() == ["/"])
    bench, fetcher, running = await bench_with_suspect(solitude=other.solitude)
    for _ in range(3):
        fetcher.allowed.release()
    await eventually(lambda: bench.count("settle"))
    await loop_turns()
    assert "/suspect" not in bench.fetched()
    others_fetcher.allowed.release()
    await eventually(lambda: bench.fetched()[3:] == ["/suspect"])
    await loop_turns()
    assert other.fetched() == ["/"]
    others_fetcher.allowed.release()
    for _ in range(2):
        fetcher.allowed.release()
    assert (await running, await elsewhere) == (5, 2)


class Panicking(ScriptedFetcher):
    """Raises what a library written in Rust raises when it fails, which is no Exception."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self._error = error

    async def fetch(self, request: Fetch) -> Answer:
        raise self._error("index out of bounds")


@pytest.mark.parametrize("error", [BaseException, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
async def test_whatever_is_raised_on_the_way_ends_the_lease(error: type[BaseException]) -> None:
    bench = Bench({})
    bench.fetcher = Panicking(error)
    await bench.memory.open_crawl(bench.crawl)
    await bench.memory.put("c", [task_for(f"{HOST}/", max_attempts=1)])
    assert await bench.run() == 0
    status = await bench.memory.look_up("c", task_for(f"{HOST}/").key)
    assert (status.state, status.reason) == (TaskState.DEAD, f"internal: {error.__name__}: index out of bounds")


@pytest.mark.parametrize("patience", [0.0, 30.0])
async def test_leases_are_renewed_while_the_event_loop_is_blocked(patience: float) -> None:
    bench = Bench({})
    await bench.begin("/")
    (lease,) = (await bench.memory.lease(["c"], 1, worker="w", seconds=0.5, horizon=1.0)).leases

    @asynccontextmanager
    async def beside() -> AsyncIterator[Any]:
        yield bench.frontier

    box = BlackBox.private().worker("w", patience=patience)
    box.open()
    renewals = Renewals({lease.token: lease}, frontier=bench.memory, seconds=0.5, box=box, beside=beside)
    running = asyncio.create_task(renewals.run(lambda step: step(), lambda _: None))
    await loop_turns()
    # No await: the event loop stands still meanwhile, for longer than the lease would have lasted.
    wait_until(lambda: bench.count("extend") >= 3, otherwise="nobody has renewed the lease")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await bench.memory.evict("w") == 1


async def test_what_a_blocked_event_loop_was_lent_and_has_not_read_is_given_back() -> None:
    bench = Bench({})
    await bench.begin("/known", "/unread")
    known, unread = (await bench.memory.lease(["c"], 2, worker="w", seconds=0.5, horizon=1.0)).leases

    @asynccontextmanager
    async def beside() -> AsyncIterator[Any]:
        yield bench.frontier

    box = BlackBox.private().worker("w", patience=30.0)
    box.open()
    is_asking = [True]
    renewals = Renewals(
        {known.token: known},
        frontier=bench.memory,
        seconds=0.5,
        box=box,
        asks=lambda: is_asking[0],
        beside=beside,
    )
    running = asyncio.create_task(renewals.run(lambda step: step(), lambda _: None))
    await loop_turns()
    asked = time.monotonic()
    wait_until(lambda: bench.count("evict") >= 1, otherwise="nobody has given the lease back")
    is_asking[0] = False
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert renewals.gave_back_since(asked)
    assert not renewals.gave_back_since(time.monotonic())
    states = [(await bench.memory.look_up("c", lease.task.key)).state for lease in (known, unread)]
    assert states == [TaskState.LEASED, TaskState.QUEUED]


class Mute:
    """A frontier that does not answer, and counts who asks it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def never(*_: Any, **__: Any) -> None:
            self.asked.append(name)
            await asyncio.Event().wait()

        return never


async def test_the_thread_does_nothing_while_the_event_loop_waits_for_a_frontier_that_does_not_answer() -> None:
    mute, opened = Mute(), list[bool]()

    @asynccontextmanager
    async def beside() -> AsyncIterator[Any]:
        opened.append(True)
        yield mute

    box = BlackBox.private().worker("w", patience=30.0)
    box.open()
    renewals = Renewals({}, frontier=cast(Any, mute), seconds=2.0, box=box, asks=lambda: True, beside=beside)
    running = asyncio.create_task(renewals.run(lambda step: step(), lambda _: None))
    ends = time.monotonic() + 3.0
    await eventually(lambda: bool(mute.asked) and time.monotonic() > ends)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (mute.asked, opened) == (["extend"], [])


async def test_what_is_lent_while_leases_are_being_given_back_is_given_back_as_well() -> None:
    mute, bench = Mute(), Bench({})
    bench.memory.evict = mute.evict  # type: ignore[method-assign]  # its answer comes late

    @asynccontextmanager
    async def beside() -> AsyncIterator[Any]:
        yield bench.memory

    box = BlackBox.private().worker("w", patience=30.0)
    box.open()
    renewals = Renewals({}, frontier=bench.memory, seconds=0.5, box=box, asks=lambda: True, beside=beside)
    running = asyncio.create_task(renewals.run(lambda step: step(), lambda _: None))
    await loop_turns()
    wait_until(lambda: bool(mute.asked), otherwise="nobody gives leases back")
    assert renewals.gave_back_since(time.monotonic())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert not renewals.gave_back_since(time.monotonic())


async def test_nobody_renews_leases_of_a_worker_that_hangs() -> None:
    asked: list[bool] = []

    class Hung(Renewals):
        """A worker whose event loop has stood still for longer than a handler may take."""

        def may_renew(self, silent: float, reading: Any) -> bool:
            asked.append(True)
            return super().may_renew(1000.0, reading)

    bench = Bench({})
    await bench.begin("/")
    (lease,) = (await bench.memory.lease(["c"], 1, worker="w", seconds=0.3, horizon=1.0)).leases

    @asynccontextmanager
    async def beside() -> AsyncIterator[Any]:
        yield bench.frontier

    box = BlackBox.private().worker("w", patience=1.0)
    box.open()
    renewals = Hung({lease.token: lease}, frontier=bench.memory, seconds=0.3, box=box, beside=beside)
    running = asyncio.create_task(renewals.run(lambda step: step(), lambda _: None))
    await loop_turns()
    wait_until(lambda: len(asked) > 10, otherwise="nobody looks")
    assert bench.count("extend") == 0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
