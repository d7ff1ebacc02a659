"""Requests that have landed: their places at the host and their slots are free, whatever their pages still wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

from worker_in_memory import HOST, Bench, Links

from shoal import Item, Page
from shoal.fetch.base import Fetch
from shoal.model import Crawl, Lease, LeaseBatch
from shoal.testing.fakes import Answer, ScriptedFetcher, Watched, respond, task_for
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.testing.waiting import eventually, loop_turns
from shoal.worker.slots import CAPPED_SECONDS, CROWD, PAGES_IN_A_CROWD, PAGES_PER_ROUND, LeaseCalls, Slots, Turns

PATHS = [f"/{number}" for number in range(40)]


class SlowHandlers(Links):
    """Every page waits in its handler until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def parse(self, page: Page) -> Any:
        await self.gate.wait()
        yield Item(key=page.url)


class CountingFetcher(ScriptedFetcher):
    """Notes how many requests are on their way at once."""

    def __init__(self) -> None:
        super().__init__(otherwise=respond(f"{HOST}/", ""))
        self.at_once = 0
        self.most = 0

    async def fetch(self, request: Fetch) -> Answer:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            return await super().fetch(request)
        finally:
            self.at_once -= 1


class NotingFrontier(MemoryFrontier):
    """Notes how many leases each call said have landed."""

    def __init__(self) -> None:
        super().__init__(clock=time.time)
        self.told: list[int] = []

    async def lease(self, crawls: Sequence[str], limit: int, **terms: Any) -> LeaseBatch:
        self.told.append(len(terms["landed"]))
        return await super().lease(crawls, limit, **terms)


def bench_with(cap: int, **settings: Any) -> Bench:
    bench = Bench({}, **settings)
    bench.crawl = Crawl(id="c", spider="links", interval=0.0, cap=cap)
    bench.fetcher = CountingFetcher()
    bench.memory = NotingFrontier()
    bench.frontier = Watched(bench.memory, bench.calls)
    return bench


async def test_a_slow_handler_holds_no_place_at_its_host_up_to_the_bound_of_pages_in_hand() -> None:
    bench = bench_with(cap=2, concurrency=8)
    bench.spider = spider = SlowHandlers()
    await bench.begin(*PATHS)
    running = asyncio.create_task(bench.run())
    await eventually(lambda: len(bench.fetched()) == 16)
    calls = bench.count("lease")
    # The worker is full: it asks no more.
    await loop_turns(50)
    assert (len(bench.fetched()), bench.count("lease")) == (16, calls)
    spider.gate.set()
    assert await running == len(PATHS)
    assert bench.fetcher.most == 2
    assert await bench.memory.lanes("c") == []


async def test_a_slow_store_holds_no_place_at_its_host_up_to_the_bound_of_the_buffer() -> None:
    bench = bench_with(cap=2, concurrency=4, flush_pages=2)
    gate = asyncio.Event()

    def meddle(name: str, *_: Any) -> Awaitable[Any] | None:
        return gate.wait() if name == "write" else None

    bench.watched_store.meddle = meddle
    await bench.begin(*PATHS)
    running = asyncio.create_task(bench.run())
    # A batch that is written, a buffer of two batches, and the pages that wait for room in it.
    await eventually(lambda: len(bench.fetched()) >= 2 + 4)
    await loop_turns(200)
    assert len(bench.fetched()) <= 2 + 4 + 8
    gate.set()
    assert await running == len(PATHS)
    assert bench.fetcher.most == 2


async def test_no_more_requests_than_slots_are_on_their_way() -> None:
    bench = bench_with(cap=100, concurrency=3)
    await bench.begin(*PATHS)
    assert await bench.run() == len(PATHS)
    assert bench.fetcher.most == 3


async def test_a_crawl_without_full_caps_does_not_pay_for_landings() -> None:
    bench = bench_with(cap=100, concurrency=4)
    bench.fetcher.gate.clear()
    await bench.begin(*PATHS)
    running = asyncio.create_task(bench.run())
    await eventually(lambda: len(bench.fetched()) == 4)
    bench.fetcher.gate.set()
    await running
    told = bench.memory.told
    assert not any(told[:-4])  # the last calls found too little


async def test_where_a_cap_binds_the_frontier_is_told_of_each_landing_once() -> None:
    bench = bench_with(cap=2, concurrency=8)
    spider = bench.spider = SlowHandlers()
    await bench.begin(*PATHS[:12])
    running = asyncio.create_task(bench.run())
    await eventually(lambda: sum(bench.memory.told) == 10)
    spider.gate.set()
    await running
    assert 10 <= sum(bench.memory.told) <= 12


def lease(token: int) -> Lease:
    return Lease(crawl="c", task=task_for(f"{HOST}/{token}"), token=token, attempt=1)


async def waits(slots: Slots, act: Callable[[], None], **options: Any) -> bool:
    """Whether the one who waits for slots still waits after this."""
    waiting = asyncio.create_task(slots.until_free(60.0, **options))
    await loop_turns(3)
    act()
    await loop_turns(3)
    still = not waiting.done()
    waiting.cancel()
    return still


async def test_who_waits_for_some_slots_is_woken_when_so_many_are_free() -> None:
    in_hand = dict.fromkeys(range(1, 5))
    slots = Slots(4, in_hand=in_hand)
    for token in in_hand:
        slots.take(lease(token))
    assert (slots.free, slots.taken) == (0, 4)
    assert await waits(slots, lambda: slots.land(lease(1)), enough=2)
    assert not await waits(slots, lambda: slots.land(lease(2)), enough=2)
    assert not await waits(slots, lambda: slots.land(lease(3)))
    assert (slots.free, list(slots.landed)) == (3, [1, 2, 3])
    slots.forget([1, 3])
    assert list(slots.landed) == [2]


async def test_a_page_that_left_does_not_land() -> None:
    slots = Slots(4, in_hand={})
    slots.take(lease(1))
    slots.leave(1)
    slots.land(lease(1))
    assert (slots.taken, slots.landed) == (0, {})


async def test_pages_that_landed_together_are_handled_a_few_per_round_in_their_order() -> None:
    turns, handled = Turns(), list[int]()

    async def handle(number: int) -> None:
        turn = turns.next()
        if turn is not None:
            await turn
        handled.append(number)

    tasks = [asyncio.create_task(handle(number)) for number in range(5 * PAGES_PER_ROUND)]
    most, before = 0, 0
    while len(handled) < len(tasks):
        await asyncio.sleep(0)
        most, before = max(most, len(handled) - before), len(handled)
    assert handled == list(range(len(tasks)))
    assert most <= 2 * PAGES_PER_ROUND


async def test_of_a_crowd_fewer_pages_are_handled_per_round() -> None:
    turns = Turns()
    waiting = [turn for _ in range(PAGES_PER_ROUND + CROWD + 20) if (turn := turns.next()) is not None]
    before = 0
    while len(waiting) - before > CROWD:
        await asyncio.sleep(0)
        begun = sum(turn.done() for turn in waiting)
        assert begun - before == PAGES_IN_A_CROWD
        before = begun
    await asyncio.sleep(0)
    assert sum(turn.done() for turn in waiting) - before == PAGES_PER_ROUND
    await asyncio.gather(*waiting)


async def test_a_call_that_named_no_landings_and_got_too_little_is_soon_followed_by_one_that_does() -> None:
    now, slots = 100.0, Slots(4, in_hand={})
    signs: Any = SimpleNamespace(share=None, portion=1.0)
    calls = LeaseCalls(slots, signs=signs, monotonic=lambda: now)
    nothing = LeaseBatch(leases=[], ask_again=60.0, at=0.0)
    slots.take(lease(1))
    slots.land(lease(1))
    assert calls.landed() == []
    calls.answered(nothing, free=1, limit=1, landed=[])
    async with asyncio.timeout(30):
        await calls.until_more(asyncio.Event(), 60.0)
    assert calls.landed() == [lease(1)]
    calls.answered(nothing, free=1, limit=1, landed=[lease(1)])
    now += CAPPED_SECONDS
    assert (calls.landed(), slots.landed) == ([], {})


async def test_a_page_that_was_given_up_while_it_waited_takes_no_turn() -> None:
    turns = Turns()
    waiting = [turn for _ in range(PAGES_PER_ROUND + 3) if (turn := turns.next()) is not None]
    assert len(waiting) == 3
    waiting[1].cancel()
    await asyncio.gather(waiting[0], waiting[2])


async def test_a_worker_that_found_nothing_asks_again_when_it_is_told_that_something_was_put() -> None:
    # By its clock no time passes: by itself it would not ask again.
    bench = Bench({"/": ""}, feeding=True, monotonic=lambda: 100.0)
    await bench.begin()
    worker = bench.worker()
    running = asyncio.create_task(worker.run(bench.stop))
    await eventually(lambda: bench.count("lease") == 1)
    await bench.memory.put("c", [task_for(f"{HOST}/")])
    await loop_turns(50)
    assert bench.count("lease") == 1
    worker.ask_again()
    await eventually(lambda: bench.fetched() == ["/"])
    bench.stop.set()
    assert await running == 1
