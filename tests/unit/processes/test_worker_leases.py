"""What a worker does with the leases it holds: it renews them, drops lost ones, and starts each in its slot."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from worker_in_memory import HOST, Bench, OneByOne

from shoal.fetch.base import Fetch
from shoal.model import Crawl, Done, Heartbeat, Lease, Pool
from shoal.testing.clock import FakeClock
from shoal.testing.fakes import Answer, ScriptedFetcher, respond, task_for
from shoal.testing.waiting import eventually
from shoal.worker.heartbeat import portion_of, share_of


async def test_the_work_of_a_lost_lease_is_dropped_at_once() -> None:
    bench = Bench({"/": "/1", "/1": ""}, lease_seconds=0.3)
    await bench.begin("/")
    running = await bench.background()
    await bench.memory.evict("w")  # it is lent again, to the same worker, under a new token
    await eventually(lambda: len(bench.fetcher.requests) == 2)
    # The next renewal tells the worker that the lease is lost. The one after it begins when that was dealt with.
    renewals = bench.count("extend")
    await eventually(lambda: bench.count("extend") >= renewals + 2)
    bench.fetcher.gate.set()
    assert await running == 2
    progress = await bench.memory.progress("c")
    assert (progress.done, progress.stale, progress.lost) == (2, 0, 1)


async def test_leases_are_renewed_while_a_page_takes_its_time() -> None:
    clock = FakeClock()
    bench = Bench({"/": ""}, lease_seconds=0.3, clock=clock)
    await bench.begin("/")
    running = await bench.background()
    for _ in range(5):
        renewals = bench.count("extend")
        clock.advance(0.2)
        await eventually(lambda before=renewals: bench.count("extend") > before)  # type: ignore[misc]  # bound now
    bench.fetcher.gate.set()
    assert await running == 1
    progress = await bench.memory.progress("c")
    assert (progress.lost, progress.stale) == (0, 0)
    assert len(bench.fetched()) == 1


class BlockedLoop(ScriptedFetcher):
    """Moves the clock at its first request, as a handler does that blocks the event loop that long."""

    def __init__(self, clock: FakeClock, *, seconds: float) -> None:
        super().__init__(otherwise=respond(f"{HOST}/", ""))
        self._clock = clock
        self._seconds = seconds

    async def fetch(self, request: Fetch) -> Answer:
        if not self.requests:
            self._clock.advance(self._seconds)
        return await super().fetch(request)


@pytest.mark.parametrize(("blocked", "reserved"), [(0.3, 1), (0.115, 1), (0.109, 0)])
async def test_only_a_start_that_comes_too_late_takes_a_new_slot(blocked: float, reserved: int) -> None:
    clock = FakeClock()
    bench = Bench({}, interval=0.1, horizon_seconds=1.0, clock=clock, monotonic=clock)
    bench.fetcher = BlockedLoop(clock, seconds=blocked)
    await bench.begin("/", "/1")
    assert await bench.run() == 2
    assert bench.count("reserve") == reserved


async def test_a_start_waits_for_its_exit_and_a_late_one_takes_the_exits_new_slot() -> None:
    clock = FakeClock()
    bench = Bench({}, horizon_seconds=1.0, clock=clock, monotonic=clock)
    bench.fetcher = BlockedLoop(clock, seconds=0.3)
    bench.crawl = Crawl(id="c", spider="links", pools=(Pool(name="ring", exits=("x",), interval=0.1, cap=9),))
    await bench.memory.open_crawl(bench.crawl)
    tasks = [task_for(HOST + path, lane="a.test via ring", pool="ring") for path in ("/", "/1")]
    await bench.memory.put("c", tasks)
    assert await bench.run() == 2
    assert bench.count("reserve") == 1
    assert {request.exit for request in bench.fetcher.requests} == {"x"}


async def scarce_work(other: Heartbeat, *, in_hand: int) -> tuple[Bench, OneByOne, asyncio.Task[int]]:
    """A worker on all the pages that its host allows at once, while more of them wait; and another worker."""
    clock = FakeClock()
    bench = Bench({}, monotonic=clock)
    bench.fetcher = fetcher = OneByOne()
    bench.crawl = Crawl(id="c", spider="links", interval=0.0, cap=in_hand)
    await bench.begin(*(f"/{number}" for number in range(3 * in_hand)))
    await bench.memory.beat(other)
    running = asyncio.create_task(bench.run())
    await eventually(lambda: len(fetcher.requests) == in_hand and bench.count("workers"))
    return bench, fetcher, running


def another_worker(**fields: Any) -> Heartbeat:
    return Heartbeat(
        **{"worker": "other", "crawl": "c", "host": "h", "pid": 1, "version": "0", "slots": 32, "busy": 0, **fields}
    )


async def test_a_worker_with_more_than_its_share_leaves_places_to_the_others() -> None:
    bench, fetcher, running = await scarce_work(another_worker(), in_hand=8)
    fetcher.let_go(4)

    async def lent_to_the_other() -> list[Lease]:
        return (await bench.memory.lease(["c"], 8, worker="other", seconds=60.0, horizon=0.0)).leases

    leases = await eventually(lent_to_the_other)
    fetcher.let_go(100)
    await bench.memory.settle([Done(lease=lease) for lease in leases])
    assert await running == 24 - len(leases)


async def test_links_that_are_all_the_work_there_is_do_not_wait_for_the_flush_time_beside_another_worker() -> None:
    chain = {f"/{number}": f"/{number + 1}" for number in range(200)}
    # More than the bench waits for its worker, and a clock by which the other worker's heartbeat does not age.
    bench = Bench({**chain, "/200": ""}, flush_seconds=60.0, clock=FakeClock())
    await bench.begin("/0")
    await bench.memory.beat(another_worker())
    assert await bench.run() == 201


@pytest.mark.parametrize("other", [another_worker(busy=32), another_worker(crawl="another")])
async def test_a_worker_asks_at_once_when_no_other_has_room_for_its_work(other: Heartbeat) -> None:
    bench, fetcher, running = await scarce_work(other, in_hand=8)
    asked = bench.count("lease")
    fetcher.let_go(1)
    await eventually(lambda: bench.count("lease") > asked and len(fetcher.requests) == 9)
    fetcher.let_go(100)
    assert await running == 24


@pytest.mark.parametrize(("mine", "share", "portion"), [(8, None, 1.0), (4, 4, 1.0), (1, 4, 1.0), (8, 2, 0.25)])
def test_who_holds_more_than_its_share_takes_a_part_of_its_places_again(
    mine: int, share: int | None, portion: float
) -> None:
    assert portion_of(mine, share) == portion


def test_the_share_is_that_of_the_workers_with_room() -> None:
    assert share_of(8, []) is None
    assert share_of(8, [another_worker(busy=32)]) is None
    assert share_of(8, [another_worker(), another_worker(busy=1)]) == 3
    assert share_of(8, [another_worker(busy=32), another_worker(busy=2)]) == 5
    assert share_of(0, [another_worker()]) == 1
