"""The figures of a worker: what it has done, and what that took."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from worker_in_memory import HOST, Bench

from shoal.errors import StorageError
from shoal.fetch.base import Fault, FaultKind, Fetch, Response
from shoal.model import FETCH_BUCKETS, Render
from shoal.testing.clock import FakeClock
from shoal.testing.fakes import ScriptedFetcher
from shoal.worker.tally import CountedFetcher, Stopwatch, Tally, store_threads_seconds


def answer(*, status: int = 200, elapsed: float = 0.0, size: int = 0) -> Response:
    return Response(url=HOST, status=status, headers={}, body=b"", wire_size=size, elapsed=elapsed)


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_counts_what_a_fetcher_gives_back() -> None:
    fault = Fault(kind=FaultKind.CONNECT, message="", elapsed=0.75)
    answers = [answer(status=200, elapsed=0.01, size=10), answer(status=404, elapsed=31.0, size=5), fault]
    tally = Tally()
    script = {f"{HOST}/{number}": given for number, given in enumerate(answers)}
    fetcher = CountedFetcher(ScriptedFetcher(script), tally)
    assert [await fetcher.fetch(Fetch(url=url)) for url in script] == answers
    figures = tally.figures()
    assert (figures.fetches, figures.fetch_seconds, figures.received_bytes) == (3, pytest.approx(31.76), 15)
    assert figures.statuses == {"2xx": 1, "4xx": 1, "fault": 1}
    assert len(figures.fetch_times) == len(FETCH_BUCKETS) + 1
    assert {index for index, number in enumerate(figures.fetch_times) if number} == {
        FETCH_BUCKETS.index(0.01),
        FETCH_BUCKETS.index(1.0),
        len(FETCH_BUCKETS),
    }


async def test_counts_what_rendered_pages_ask_for() -> None:
    page = Response(
        url=HOST, status=200, headers={}, body=b"", wire_size=0, elapsed=0.0, page_requests=9, page_refused=2
    )
    fault = Fault(kind=FaultKind.TOO_LARGE, message="", page_requests=1000)
    tally = Tally()
    fetcher = CountedFetcher(ScriptedFetcher({f"{HOST}/0": page, f"{HOST}/1": fault}), tally)
    for number in range(2):
        await fetcher.fetch(Fetch(url=f"{HOST}/{number}", render=Render()))
    assert (tally.figures().page_requests, tally.figures().page_refused) == (1009, 2)


def test_a_status_that_no_standard_has_is_a_fault() -> None:
    tally = Tally()
    for status in (0, 99, 600, 999, 100):
        tally.fetched(answer(status=status))
    assert tally.figures().statuses == {"fault": 4, "1xx": 1}


async def test_calls_count_until_they_are_answered_or_fail() -> None:
    clock = FakeClock()
    tally = Tally(clock=clock)

    async def settle(*, fails: bool) -> int:
        clock.advance(2.0)
        if fails:
            raise StorageError("locked")
        return 7

    assert await tally.settles.timed(settle(fails=False)) == 7
    with pytest.raises(StorageError):
        await tally.settles.timed(settle(fails=True))
    figures = tally.figures()
    assert (figures.settles, figures.settle_seconds, figures.lease_calls) == (2, 4.0, 0)


async def test_the_cpu_time_of_a_write_is_that_of_its_own_steps_and_of_the_stores_threads() -> None:
    tally = Tally()

    async def write(thread: ThreadPoolExecutor) -> str:
        burn(0.02)
        await asyncio.get_running_loop().run_in_executor(thread, burn, 0.03)
        return "written"

    async def work_elsewhere() -> None:
        burn(0.2)

    with ThreadPoolExecutor(1, thread_name_prefix="shoal-store") as thread:
        written, _ = await asyncio.gather(tally.written(write(thread)), work_elsewhere())
    assert written == "written"
    assert tally.figures().writes == 1
    assert 0.05 <= tally.store_cpu < 0.2


async def test_a_write_that_is_cancelled_or_fails_ends_as_it_would_alone() -> None:
    tally, ended = Tally(), list[str]()

    async def write() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def fail() -> None:
        await asyncio.sleep(0)
        raise StorageError("locked")

    writing = asyncio.create_task(tally.written(write()))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    with pytest.raises(StorageError, match="locked"):
        await tally.written(fail())
    assert (ended, tally.figures().writes) == (["cancelled"], 2)


def test_threads_that_are_not_of_a_store_do_not_count() -> None:
    before = store_threads_seconds()
    with ThreadPoolExecutor(1, thread_name_prefix="shoal-frontier") as thread:
        thread.submit(burn, 0.01).result()
        assert store_threads_seconds() == before


def test_a_spell_lasts_until_it_ends() -> None:
    clock = FakeClock()
    spell = Stopwatch(clock)
    spell.end()
    spell.begin()
    clock.advance(2.0)
    spell.begin()
    assert spell.seconds == 2.0
    spell.end()
    clock.advance(5.0)
    spell.begin()
    clock.advance(1.0)
    spell.end()
    assert spell.seconds == 3.0


async def test_a_worker_tells_its_figures_with_its_signs_of_life() -> None:
    bench = Bench({"/": "/1 /2", "/1": "", "/2": ""}, concurrency=1)
    await bench.begin("/")
    assert await bench.run() == 3
    (last,) = await bench.memory.workers_of("c")
    figures = last.figures
    assert last.left
    assert (figures.fetches, figures.statuses) == (3, {"2xx": 3})
    assert (figures.lease_calls, figures.settles) == (bench.count("lease"), bench.count("settle"))
    assert figures.writes == bench.count("write")
    assert figures.cpu_seconds > 0.0
    assert figures.parse_cpu > 0.0
    assert figures.handler_cpu > 0.0
    assert figures.waiting_for_slots > 0.0
