"""The worker's loop: what it leases, keeps, drops, remembers and hands back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from shoal import Item, Page, Spider
from shoal.errors import ServerUnreachable, StorageError
from shoal.fetch.base import Fetch, Response
from shoal.handlers import Handlers
from shoal.intake import Intake, RecentKeys
from shoal.journey import Journey
from shoal.lane_rules import LaneRules
from shoal.model import Budgets, Crawl, DeadFilter, Done, Pool, Released
from shoal.settings import Settings
from shoal.testing.clock import FakeClock
from shoal.testing.fakes import MemoryStore, ScriptedFetcher, Watched, respond, task_for
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.urls import UrlRules, key_of
from shoal.worker import Worker, WorkerParts, resident_bytes, worker_name

HOST = "https://a.test"
FAST: dict[str, Any] = {"rate": "unlimited", "obey_robots": False, "flush_seconds": 0.01, "retry_seconds": 0.01}


class Links(Spider):
    """Every page gives one item and its links."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def parse(self, page: Page) -> Any:
        yield Item(key=page.url)
        yield page.follow("a")

    async def started(self) -> None:
        self.heard.append("started")

    async def finished(self) -> None:
        self.heard.append("finished")


class Bench:
    """A worker over a scripted site, with everything in memory."""

    def __init__(self, site: dict[str, str], *, interval: float = 0.0, cap: int = 100, **settings: Any) -> None:
        self.settings = Settings(**{**FAST, **settings})
        self.crawl = Crawl(id="c", spider="links", interval=interval, cap=cap)
        self.calls: list[tuple[str, Any]] = []
        self.said: list[str] = []
        self.memory = MemoryFrontier(clock=time.time)
        self.frontier: Any = Watched(self.memory, self.calls)
        self.store = MemoryStore()
        self.watched_store: Any = Watched(self.store, self.calls)
        self.fetcher = ScriptedFetcher({HOST + path: page(HOST + path, links) for path, links in site.items()})
        self.spider = Links()
        self.known = RecentKeys()
        self.stop = asyncio.Event()

    def worker(self, *, stays: bool = False) -> Worker:
        intake = Intake(UrlRules(self.settings, start_hosts=["a.test"]), self.settings, known=self.known)
        journey = Journey(
            spider_name="links",
            worker="w",
            settings=self.settings,
            needs_rules=False,
            fetcher=self.fetcher,
            handlers=Handlers(self.spider, intake=intake, item_key="", seconds=5.0),
            intake=intake,
            lane_rules=LaneRules(frontier=self.frontier, fetcher=self.fetcher, settings=self.settings),
        )
        parts = WorkerParts(
            spider=self.spider,
            frontier=self.frontier,
            store=self.watched_store,
            journey=journey,
            known=self.known,
            say=self.said.append,
        )
        return Worker("c", name="w", settings=self.settings, parts=parts, stays=stays)

    async def begin(self, *paths: str) -> None:
        await self.memory.open_crawl(self.crawl)
        await self.memory.put("c", [task_for(HOST + path) for path in paths])

    async def run(self, *, stays: bool = False) -> int:
        async with asyncio.timeout(20):
            return await self.worker(stays=stays).run(self.stop)

    async def background(self, *, stays: bool = False) -> asyncio.Task[int]:
        """The worker at work, every task it can take fetched and waiting at the gate."""
        self.fetcher.gate.clear()
        running = asyncio.create_task(self.run(stays=stays))
        await soon(lambda: self.fetcher.requests)
        return running

    def fetched(self) -> list[str]:
        return [request.url.removeprefix(HOST) for request in self.fetcher.requests]


def page(url: str, links: str) -> Response:
    return respond(url, "".join(f"<a href={link}>x</a>" for link in links.split()))


async def soon(check: Callable[[], Any], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not check():  # noqa: ASYNC110 -- what is awaited has no event
            await asyncio.sleep(0.005)


async def test_a_worker_works_to_the_end_and_gives_its_pages() -> None:
    bench = Bench({"/": "/1 /2", "/1": "/ /2", "/2": "/3", "/3": ""})
    await bench.begin("/")
    assert await bench.run() == 4
    assert sorted(bench.fetched()) == ["/", "/1", "/2", "/3"]
    assert len(bench.store.rows) == 4
    assert (await bench.memory.progress("c")).outcomes == {"ok": 4}
    assert bench.spider.heard == ["started", "finished"]
    assert bench.said == []


async def test_every_page_is_stored_before_it_is_settled() -> None:
    bench = Bench({"/": " ".join(f"/{number}" for number in range(40)), **{f"/{number}": "" for number in range(40)}})
    await bench.begin("/")
    await bench.run()
    stored: set[str] = set()
    for name, argument in bench.calls:
        if name == "write":
            stored |= {item.url for item in argument}
        if name == "settle":
            assert {result.lease.task.url for result in argument if isinstance(result, Done)} <= stored


async def test_a_store_that_keeps_failing_ends_the_worker_and_nothing_is_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.patience.STORAGE_PATIENCE_SECONDS", 0.1)
    bench = Bench({"/": "", "/1": ""})
    await bench.begin("/", "/1")

    def meddle(*_: Any) -> None:
        raise StorageError("shoal.db: the disk is full")

    bench.watched_store.meddle = meddle
    with pytest.raises(StorageError, match="the disk is full"):
        await bench.run()
    assert "settle" not in [name for name, _ in bench.calls]
    assert (await bench.memory.progress("c")).leased == 2
    assert bench.spider.heard == ["started", "finished"]


async def test_a_store_that_fails_while_the_worker_stops_does_not_hang_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.patience.STORAGE_PATIENCE_SECONDS", 0.3)
    paths = [f"/{number}" for number in range(30)]
    bench = Bench(dict.fromkeys(paths, ""), flush_pages=2, concurrency=30, grace_seconds=0.2)
    await bench.begin(*paths)

    def meddle(*_: Any) -> None:
        bench.stop.set()
        raise StorageError("shoal.db: the disk is full")

    bench.watched_store.meddle = meddle
    with pytest.raises(StorageError, match="the disk is full"):
        await bench.run()


async def test_leasing_stops_while_the_store_is_slow() -> None:
    paths = [f"/{number}" for number in range(60)]
    bench = Bench(dict.fromkeys(paths, ""), flush_pages=2, concurrency=4)
    await bench.begin(*paths)
    gate = asyncio.Event()
    bench.watched_store.meddle = lambda name, *_: gate.wait() if name == "write" else None
    running = asyncio.create_task(bench.run())
    await asyncio.sleep(0.3)
    # A batch under way, two in the buffer, one page per slot that waits to get in.
    assert len(bench.fetched()) <= 2 + 4 + 4
    gate.set()
    assert await running == 60


async def test_the_work_of_a_lost_lease_is_dropped_at_once() -> None:
    bench = Bench({"/": "/1", "/1": ""}, lease_seconds=0.3)
    await bench.begin("/")
    running = await bench.background()
    await bench.memory.evict("w")  # it is lent again, to the same worker, under a new token
    await soon(lambda: len(bench.fetcher.requests) == 2)
    await asyncio.sleep(0.2)
    bench.fetcher.gate.set()
    assert await running == 2
    progress = await bench.memory.progress("c")
    assert (progress.done, progress.stale, progress.lost) == (2, 0, 1)


async def test_leases_are_renewed_while_a_page_takes_its_time() -> None:
    bench = Bench({"/": ""}, lease_seconds=0.2)
    await bench.begin("/")
    running = await bench.background()
    await asyncio.sleep(0.6)
    bench.fetcher.gate.set()
    assert await running == 1
    progress = await bench.memory.progress("c")
    assert (progress.lost, progress.stale) == (0, 0)
    assert len(bench.fetched()) == 1


async def test_a_key_is_known_only_after_its_settle_was_confirmed() -> None:
    """Page A finds /x and is not settled yet: page B, which finds /x too, must still send it."""
    bench = Bench({"/a": "/x", "/b": "/x"}, flush_pages=1)
    await bench.begin("/a", "/b")
    confirmed = asyncio.Event()
    bench.frontier.meddle = lambda name, *_: confirmed.wait() if name == "settle" else None
    running = asyncio.create_task(bench.run())
    await soon(lambda: sorted(bench.fetched()) == ["/a", "/b"])
    await asyncio.sleep(0.1)
    assert key_of(f"{HOST}/x") not in bench.known
    confirmed.set()
    await running
    sent = [
        result.found
        for name, given in bench.calls
        if name == "settle"
        for result in given
        if getattr(result, "found", None)
    ]
    assert [[task.url for task in found] for found in sent] == [[f"{HOST}/x"], [f"{HOST}/x"]]
    assert key_of(f"{HOST}/x") in bench.known
    assert bench.fetched().count("/x") == 1


async def test_links_of_a_stale_settle_do_not_become_known() -> None:
    bench = Bench({"/": "/x"}, max_attempts=1)
    await bench.begin("/")
    running = await bench.background(stays=True)
    await bench.memory.delete_crawl("c")
    await bench.memory.open_crawl(bench.crawl)
    bench.fetcher.gate.set()
    await soon(lambda: "settle" in [name for name, _ in bench.calls])
    bench.stop.set()
    assert await running == 0
    assert key_of(f"{HOST}/x") not in bench.known


async def test_links_that_a_budget_refused_do_not_become_known() -> None:
    bench = Bench({"/": "/x /y"})
    bench.crawl = Crawl(id="c", spider="links", interval=0.0, budgets=Budgets(pages=2))
    await bench.begin("/")
    assert await bench.run() == 2
    assert key_of(f"{HOST}/x") in bench.known
    assert key_of(f"{HOST}/y") not in bench.known


async def test_links_of_a_long_list_that_a_budget_refused_do_not_become_known() -> None:
    bench = Bench({"/": " ".join(f"/{number}" for number in range(700))})
    bench.crawl = Crawl(id="c", spider="links", interval=0.0, budgets=Budgets(pages=2))
    await bench.begin("/")
    await bench.run()
    assert key_of(f"{HOST}/0") in bench.known
    assert key_of(f"{HOST}/1") not in bench.known


async def test_a_new_epoch_empties_the_known_keys() -> None:
    bench = Bench({"/": "/x", "/x": ""})
    await bench.begin("/")
    running = await bench.background(stays=True)
    bench.fetcher.gate.set()
    await soon(lambda: key_of(f"{HOST}/x") in bench.known)
    await soon(lambda: len(bench.store.rows) == 2)
    await bench.memory.forget("c", [key_of(f"{HOST}/x")])
    await soon(lambda: key_of(f"{HOST}/x") not in bench.known)
    bench.stop.set()
    await running


async def test_a_link_to_a_page_that_has_expired_is_followed_again() -> None:
    bench = Bench({"/1": "/x", "/2": "/x", "/x": ""})
    clock = FakeClock()
    bench.memory = MemoryFrontier(clock=clock)
    bench.frontier = Watched(bench.memory, bench.calls)
    bench.crawl = msgspec.structs.replace(bench.crawl, dedup_ttl=100.0)
    await bench.begin("/1")
    # Put before the page expires: no put tells the worker that it has.
    await bench.memory.put("c", [msgspec.structs.replace(task_for(f"{HOST}/2"), delay=200.0)])
    running = await bench.background(stays=True)
    bench.fetcher.gate.set()
    await soon(lambda: len(bench.store.rows) == 2 and key_of(f"{HOST}/x") in bench.known)
    clock.advance(200.0)
    await soon(lambda: bench.fetched() == ["/1", "/x", "/2", "/x"])
    bench.stop.set()
    await running


async def test_a_stopped_worker_finishes_what_it_has_in_hand() -> None:
    bench = Bench({"/": "/1", "/1": ""})
    await bench.begin("/")
    running = await bench.background()
    bench.stop.set()
    await asyncio.sleep(0.05)
    bench.fetcher.gate.set()
    assert await running == 1
    progress = await bench.memory.progress("c")
    assert (progress.done, progress.queued, progress.leased) == (1, 1, 0)


async def test_what_is_not_finished_within_the_grace_period_is_handed_back() -> None:
    bench = Bench({"/": "", "/1": ""}, grace_seconds=0.1)
    await bench.begin("/", "/1")
    running = await bench.background()
    bench.stop.set()
    assert await running == 0
    progress = await bench.memory.progress("c")
    assert (progress.queued, progress.leased) == (2, 0)
    status = await bench.memory.look_up("c", key_of(f"{HOST}/"))
    assert status.attempts == 0


async def test_leases_that_wait_for_their_start_are_handed_back_at_once() -> None:
    bench = Bench({"/": "", "/1": "", "/2": ""}, interval=5.0, horizon_seconds=30.0, grace_seconds=20.0)
    await bench.begin("/", "/1", "/2")
    began = time.monotonic()
    running = asyncio.create_task(bench.run())
    await soon(lambda: bench.fetcher.requests)
    bench.stop.set()
    assert await running == 1
    assert time.monotonic() - began < 4
    progress = await bench.memory.progress("c")
    assert (progress.done, progress.queued, progress.leased, progress.stale) == (1, 2, 0, 0)
    handed = [result for name, given in bench.calls if name == "settle" for result in given]
    assert sum(isinstance(result, Released) for result in handed) == 2


async def test_a_hungry_worker_does_not_wait_for_the_flush_time() -> None:
    chain = {f"/{number}": f"/{number + 1}" for number in range(30)}
    bench = Bench({**chain, "/30": ""}, flush_seconds=5.0)
    await bench.begin("/0")
    began = time.monotonic()
    assert await bench.run() == 31
    assert time.monotonic() - began < 5.0


async def test_a_start_that_comes_too_late_takes_a_new_slot() -> None:
    bench = Bench({"/": "", "/1": ""}, interval=0.1, horizon_seconds=1.0)
    await bench.begin("/", "/1")
    running = asyncio.create_task(bench.run())
    await soon(lambda: bench.fetcher.requests)
    time.sleep(0.3)  # noqa: ASYNC251 -- a handler that holds up everything
    assert await running == 2
    assert [name for name, _ in bench.calls].count("reserve") == 1


async def test_a_start_waits_for_its_exit_and_a_late_one_takes_the_exits_new_slot() -> None:
    bench = Bench({"/": "", "/1": ""}, horizon_seconds=1.0)
    bench.crawl = Crawl(id="c", spider="links", pools=(Pool(name="ring", exits=("x",), interval=0.1, cap=9),))
    await bench.memory.open_crawl(bench.crawl)
    tasks = [task_for(HOST + path, lane="a.test via ring", pool="ring") for path in ("/", "/1")]
    await bench.memory.put("c", tasks)
    running = asyncio.create_task(bench.run())
    await soon(lambda: bench.fetcher.requests)
    assert bench.fetched() == ["/"]
    time.sleep(0.3)  # noqa: ASYNC251 -- a handler that holds up everything
    assert await running == 2
    assert [name for name, _ in bench.calls].count("reserve") == 1
    assert {request.exit for request in bench.fetcher.requests} == {"x"}


async def test_leases_that_are_handed_back_unstarted_leave_their_exit_unused() -> None:
    bench = Bench({"/": "", "/1": ""}, horizon_seconds=30.0)
    bench.crawl = Crawl(id="c", spider="links", pools=(Pool(name="ring", exits=("x",), interval=5.0, cap=9),))
    await bench.memory.open_crawl(bench.crawl)
    await bench.memory.put("c", [task_for(HOST + path, lane="a.test via ring", pool="ring") for path in ("/", "/1")])
    running = asyncio.create_task(bench.run())
    await soon(lambda: bench.fetcher.requests)
    bench.stop.set()
    assert await running == 1
    (status,) = await bench.memory.exits("c")
    assert (status.requests, status.in_flight) == (1, 0)


async def test_a_fault_of_the_workers_own_is_seen_and_retried_never_lost() -> None:
    class Broken(ScriptedFetcher):
        async def fetch(self, request: Fetch) -> Any:
            raise RuntimeError("bug")

    bench = Bench({})
    bench.fetcher = Broken()
    await bench.memory.open_crawl(bench.crawl)
    await bench.memory.put("c", [task_for(f"{HOST}/", max_attempts=1)])
    await bench.run()
    [letter] = await bench.memory.dead("c", DeadFilter())
    assert letter.reason == "internal: RuntimeError: bug"
    assert "in fetch" in letter.detail


async def test_a_handler_that_exits_or_cancels_does_not_hang_or_end_the_worker() -> None:
    class Rude(Links):
        async def parse(self, page: Page) -> Any:
            if page.url.endswith("/exit"):
                raise SystemExit
            other = asyncio.ensure_future(asyncio.sleep(9))
            other.cancel()
            await other

    bench = Bench({"/exit": "", "/cancel": ""})
    bench.spider = Rude()
    await bench.memory.open_crawl(bench.crawl)
    await bench.memory.put("c", [task_for(f"{HOST}/{name}", max_attempts=1) for name in ("exit", "cancel")])
    assert await bench.run() == 0
    assert (await bench.memory.progress("c")).outcomes == {"handler": 2}


async def test_a_worker_that_stays_waits_for_more() -> None:
    bench = Bench({"/": "", "/1": ""})
    await bench.begin("/")
    running = asyncio.create_task(bench.run(stays=True))
    await soon(lambda: bench.store.rows)
    await asyncio.sleep(0.1)
    assert not running.done()
    await bench.memory.put("c", [task_for(f"{HOST}/1")])
    await soon(lambda: len(bench.store.rows) == 2)
    bench.stop.set()
    assert await running == 2


async def test_a_worker_gives_signs_of_life() -> None:
    bench = Bench({"/": ""})
    await bench.begin("/")
    await bench.run()
    [beat] = await bench.memory.workers()
    assert (beat.worker, beat.crawl, beat.slots) == ("w", "c", bench.settings.concurrency)
    assert beat.memory_bytes == pytest.approx(resident_bytes(), rel=0.5)
    assert worker_name() != worker_name()


async def test_a_worker_told_to_stop_does_not_wait_for_a_frontier_that_is_gone() -> None:
    bench = Bench({"/": ""})
    await bench.begin("/")

    def meddle(name: str, *_: Any) -> None:
        if name == "lease":
            bench.stop.set()
            raise ServerUnreachable("the queue is gone")

    bench.frontier.meddle = meddle
    assert await bench.run() == 0


async def test_a_worker_told_to_stop_does_not_wait_for_a_frontier_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.worker.LAST_ANSWER_SECONDS", 0.05)
    bench = Bench({"/": ""})
    await bench.begin("/")

    def meddle(name: str, *_: Any) -> Any:
        if name == "lease":
            bench.stop.set()
            return asyncio.sleep(60)
        return None

    bench.frontier.meddle = meddle
    async with asyncio.timeout(5):
        assert await bench.run() == 0


async def test_pages_that_cannot_be_handed_in_do_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.worker.STORAGE_PATIENCE_SECONDS", 0.0)
    bench = Bench({"/": ""}, grace_seconds=0.1)
    await bench.begin("/")

    def meddle(name: str, *_: Any) -> None:
        if name == "settle":
            bench.stop.set()
            raise ServerUnreachable("the queue is gone")

    bench.frontier.meddle = meddle
    with pytest.raises(ServerUnreachable, match="1 pages could not be handed in"):
        await bench.run()
    assert (await bench.memory.progress("c")).leased == 1
