"""The worker's loop: from the first lease to the end of the crawl, with slow and broken parts around it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from worker_in_memory import HOST, Bench, Links

from shoal import Page
from shoal.errors import ServerUnreachable, StorageError
from shoal.fetch.base import Fetch
from shoal.model import DeadFilter, Done
from shoal.testing.clock import FakeClock
from shoal.testing.fakes import ScriptedFetcher, task_for
from shoal.testing.waiting import eventually, loop_turns
from shoal.worker.machine import resident_bytes, worker_name


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
    settled: set[str] = set()
    for name, argument in bench.calls:
        if name == "write":
            stored |= {item.url for item in argument}
        if name == "settle":
            settled |= {result.lease.task.url for result in argument if isinstance(result, Done)}
            assert settled <= stored
    assert settled == {f"{HOST}/", *(f"{HOST}/{number}" for number in range(40))}


async def test_a_store_that_keeps_failing_ends_the_worker_and_nothing_is_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.worker.outages.STORAGE_PATIENCE_SECONDS", 0.1)
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


async def test_leasing_stops_while_the_store_is_slow() -> None:
    paths = [f"/{number}" for number in range(60)]
    bench = Bench(dict.fromkeys(paths, ""), flush_pages=2, concurrency=4)
    await bench.begin(*paths)
    gate = asyncio.Event()
    bench.watched_store.meddle = lambda name, *_: gate.wait() if name == "write" else None
    running = asyncio.create_task(bench.run())
    # Two pages in the write, four in the buffer, two that wait for room in it: the other two slots stay empty.
    await eventually(lambda: len(bench.fetched()) == 2 + 4 + 2)
    await loop_turns()
    assert len(bench.fetched()) == 2 + 4 + 2
    gate.set()
    assert await running == 60


async def test_an_idle_worker_does_not_wait_for_the_flush_time() -> None:
    chain = {f"/{number}": f"/{number + 1}" for number in range(30)}
    bench = Bench({**chain, "/30": ""}, flush_seconds=60.0)  # more than the bench waits for its worker
    await bench.begin("/0")
    assert await bench.run() == 31


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


async def test_a_worker_waits_for_more_while_a_source_feeds_the_crawl() -> None:
    bench = Bench({"/": "", "/1": ""}, feeding=True)
    await bench.begin("/")
    running = asyncio.create_task(bench.run())
    await eventually(lambda: bench.store.rows)
    asked = bench.count("lease")
    await eventually(lambda: bench.count("lease") > asked + 1)
    assert not running.done()
    await bench.memory.put("c", [task_for(f"{HOST}/1")])
    await bench.memory.set_feeding("c", "feeder", seconds=0)
    assert await running == 2


async def test_a_worker_gives_signs_of_life() -> None:
    clock = FakeClock(1_700_000_000.0)
    bench = Bench({"/": ""}, clock=clock, feeding=True)
    await bench.begin("/")
    running = asyncio.create_task(bench.run())
    [beat] = await eventually(bench.memory.workers)
    await bench.memory.set_feeding("c", "feeder", seconds=0)
    await running
    assert (beat.worker, beat.crawl, beat.slots) == ("w", "c", bench.settings.concurrency)
    assert beat.started == clock()
    assert beat.memory_bytes == pytest.approx(resident_bytes(), rel=0.5)
    assert worker_name(7) != worker_name(7)


async def test_a_worker_tells_what_it_waits_for() -> None:
    bench = Bench({"/": ""})
    await bench.begin("/")
    is_back = asyncio.Event()

    def meddle(name: str, *_: Any) -> None:
        if name == "write" and not is_back.is_set():
            raise ServerUnreachable("cannot reach PostgreSQL at host: connection refused")

    bench.watched_store.meddle = meddle
    running = asyncio.create_task(bench.run())

    async def troubles() -> tuple[str, ...]:
        return tuple(line for beat in await bench.memory.workers() for line in beat.troubles)

    (line,) = await eventually(troubles)
    assert line.startswith("the store: waiting for ")
    assert line.endswith("cannot reach PostgreSQL at host: connection refused")
    is_back.set()
    assert await running == 1


async def test_leases_whose_answer_was_lost_are_reclaimed_and_worked_on() -> None:
    paths = [f"/{number}" for number in range(4)]
    bench = Bench(dict.fromkeys(paths, ""), lease_seconds=600.0)
    await bench.begin(*paths)
    answers = iter([ServerUnreachable("cannot reach Redis at host: Connection reset by peer"), None])

    async def lose_the_answer() -> None:
        if (failure := next(answers, None)) is not None:
            await bench.memory.lease(["c"], 2, worker="w", seconds=600.0, horizon=0.0)
            raise failure

    bench.frontier.meddle = lambda name, *_: lose_the_answer() if name == "lease" else None
    assert await bench.run() == len(paths)
    assert (await bench.memory.progress("c")).lost == 0


class Burning(Links):
    """A spider whose first handler needs the CPU for longer than it is from one heartbeat to the next."""

    def parse(self, page: Page) -> Any:
        end = time.monotonic() + (1.2 if page.url == f"{HOST}/" else 0.0)
        while time.monotonic() < end:
            pass
        yield from super().parse(page)


async def test_a_worker_tells_how_much_of_a_core_it_uses() -> None:
    bench = Bench({"/": "/1", "/1": ""})
    bench.spider = Burning()
    await bench.begin("/")
    await bench.run()
    loads = [sign.load for verb, sign in bench.calls if verb == "beat"]
    assert max(loads) > 0.5


async def test_the_last_sign_of_life_tells_that_the_worker_left_and_all_its_pages() -> None:
    bench = Bench({"/": "/1 /2", "/1": "", "/2": ""})
    await bench.begin("/")
    pages = await bench.run()
    assert await bench.memory.workers() == []
    [beat] = await bench.memory.workers_of("c")
    assert (beat.pages, beat.busy, pages) == (3, 0, 3)
    assert beat.left > 0
    assert beat.pages_per_second == pytest.approx(3 / (beat.left - beat.started))
