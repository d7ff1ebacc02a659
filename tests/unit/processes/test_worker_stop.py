"""A worker that is told to stop: what it finishes, what it releases, and what it does not wait for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from worker_in_memory import HOST, Bench

from shoal.errors import ServerUnreachable, StorageError
from shoal.model import Crawl, Pool, Released
from shoal.testing.fakes import task_for
from shoal.testing.waiting import eventually, loop_turns
from shoal.urls.canonical import key_of


async def test_a_store_that_fails_while_the_worker_stops_does_not_hang_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.worker.outages.STORAGE_PATIENCE_SECONDS", 0.3)
    paths = [f"/{number}" for number in range(30)]
    bench = Bench(dict.fromkeys(paths, ""), flush_pages=2, concurrency=30, grace_seconds=0.2)
    await bench.begin(*paths)

    def meddle(*_: Any) -> None:
        bench.stop.set()
        raise StorageError("shoal.db: the disk is full")

    bench.watched_store.meddle = meddle
    with pytest.raises(StorageError, match="the disk is full"):
        await bench.run()


async def test_a_stopped_worker_finishes_what_it_has_in_hand() -> None:
    bench = Bench({"/": "/1", "/1": ""})
    await bench.begin("/")
    running = await bench.background()
    bench.stop.set()
    await loop_turns()  # so that it has noticed
    assert not running.done()
    bench.fetcher.gate.set()
    assert await running == 1
    progress = await bench.memory.progress("c")
    assert (progress.done, progress.queued, progress.leased) == (1, 1, 0)


async def test_pages_that_are_not_finished_within_the_grace_period_are_released() -> None:
    bench = Bench({"/": "", "/1": ""}, grace_seconds=0.1)
    await bench.begin("/", "/1")
    running = await bench.background()
    bench.stop.set()
    assert await running == 0
    progress = await bench.memory.progress("c")
    assert (progress.queued, progress.leased) == (2, 0)
    status = await bench.memory.look_up("c", key_of(f"{HOST}/"))
    assert status.attempts == 0


async def test_leases_that_wait_for_their_start_are_released_at_once() -> None:
    bench = Bench({"/": "", "/1": "", "/2": ""}, interval=60.0, horizon_seconds=300.0, grace_seconds=60.0)
    await bench.begin("/", "/1", "/2")
    running = asyncio.create_task(bench.run())
    await eventually(lambda: bench.fetcher.requests)
    bench.stop.set()
    assert await running == 1  # else the bench does not wait that long
    progress = await bench.memory.progress("c")
    assert (progress.done, progress.queued, progress.leased, progress.stale) == (1, 2, 0, 0)
    handed = [result for name, given in bench.calls if name == "settle" for result in given]
    assert sum(isinstance(result, Released) for result in handed) == 2


async def test_leases_that_are_released_before_their_start_leave_their_exit_unused() -> None:
    bench = Bench({"/": "", "/1": ""}, horizon_seconds=30.0)
    bench.crawl = Crawl(id="c", spider="links", pools=(Pool(name="ring", exits=("x",), interval=5.0, cap=9),))
    await bench.memory.open_crawl(bench.crawl)
    await bench.memory.put("c", [task_for(HOST + path, lane="a.test via ring", pool="ring") for path in ("/", "/1")])
    running = asyncio.create_task(bench.run())
    await eventually(lambda: bench.fetcher.requests)
    bench.stop.set()
    assert await running == 1
    (status,) = await bench.memory.exits("c")
    assert (status.requests, status.in_flight) == (1, 0)


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
    monkeypatch.setattr("shoal.worker.worker.LAST_ANSWER_SECONDS", 0.05)
    bench = Bench({"/": ""})
    await bench.begin("/")

    def meddle(name: str, *_: Any) -> Any:
        if name == "lease":
            bench.stop.set()
            return asyncio.sleep(60)
        return None

    bench.frontier.meddle = meddle
    async with asyncio.timeout(30):
        assert await bench.run() == 0


async def test_pages_that_cannot_be_settled_do_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.worker.worker.STORAGE_PATIENCE_SECONDS", 0.0)
    bench = Bench({"/": ""}, grace_seconds=0.1)
    await bench.begin("/")

    def meddle(name: str, *_: Any) -> None:
        if name == "settle":
            bench.stop.set()
            raise ServerUnreachable("the queue is gone")

    bench.frontier.meddle = meddle
    with pytest.raises(ServerUnreachable, match="1 page could not be settled"):
        await bench.run()
    assert (await bench.memory.progress("c")).leased == 1
