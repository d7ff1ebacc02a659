"""The history of a crawl, as its coordinator keeps it."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec
import pytest

from shoal.duties.history import OUTCOMES_KEPT, Historian, commonest
from shoal.errors import ServerUnreachable
from shoal.insight.survey import added
from shoal.model import Crawl, Done, Figures, Heartbeat, Point, Progress
from shoal.run.coordinator import Coordinator
from shoal.testing.clock import FakeClock
from shoal.testing.fakes import task_for
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.testing.waiting import eventually
from shoal.worker.machine import this_machine

HOUR = 3600.0


def beat(name: str, **fields: Any) -> Heartbeat:
    here = {"pid": os.getpid(), "machine": this_machine()}
    return Heartbeat(**{"worker": name, "crawl": "c", "host": "h", "version": "0", "slots": 4, **here, **fields})


async def opened() -> tuple[MemoryFrontier, Crawl, FakeClock]:
    clock = FakeClock()
    frontier = MemoryFrontier(clock=clock)
    return frontier, await frontier.open_crawl(Crawl(id="c", spider="s", interval=0.0)), clock


async def test_a_point_has_the_counts_of_the_crawl_and_the_sums_of_its_workers() -> None:
    frontier, _, clock = await opened()
    await frontier.put("c", [task_for(f"https://a.test/{number}") for number in range(4)])
    leases = (await frontier.lease(["c"], 2, worker="w", seconds=60.0, horizon=1.0)).leases
    await frontier.settle([Done(lease=leases[0])])
    await frontier.beat(beat("left", left=clock(), figures=Figures(fetch_times=(1, 2), received_bytes=10)))
    await frontier.beat(beat("at work", figures=Figures(fetch_times=(0, 1, 5), received_bytes=7)))
    await frontier.beat(beat("elsewhere", crawl="other", figures=Figures(fetch_times=(9,), received_bytes=9)))
    assert await Historian(frontier, "c").keep()
    (point,) = await frontier.points("c", seconds=HOUR)
    assert point == Point(
        at=clock(),
        queued=2,
        delayed=0,
        leased=1,
        done=1,
        dead=0,
        retried=0,
        lost=0,
        outcomes={"ok": 1},
        fetch_times=(1, 3, 5, *(0,) * 9),
        received_bytes=17,
        workers=1,
        cost=0.0,
    )
    assert not await Historian(frontier, "c").keep()


def test_rare_outcomes_are_counted_together() -> None:
    outcomes = {f"http_{number}": number for number in range(1, OUTCOMES_KEPT + 4)}
    kept = commonest(outcomes, most=OUTCOMES_KEPT)
    assert (len(kept), kept["other"], sum(kept.values())) == (OUTCOMES_KEPT + 1, 1 + 2 + 3, sum(outcomes.values()))
    assert commonest({"ok": 3}, most=1) == {"ok": 3}
    assert commonest({}, most=1) == {}


def test_fetch_times_are_added_by_their_buckets() -> None:
    assert added([]) == (0,) * 12
    assert added([(), (1, 2), (3,)]) == (4, 2, *(0,) * 10)


async def test_a_coordinator_keeps_the_beginning_and_the_end() -> None:
    frontier, crawl, clock = await opened()
    coordinator = Coordinator(crawl, frontier=frontier, show=lambda _: None, say=print)
    keeping = asyncio.create_task(coordinator.keep_history())

    async def has_begun() -> bool:
        return len(await frontier.points("c", seconds=HOUR)) == 1

    await eventually(has_begun)
    keeping.cancel()
    clock.advance(30.0)
    await frontier.put("c", [task_for("https://a.test/")])
    await coordinator.end_history()
    assert [point.queued for point in await frontier.points("c", seconds=HOUR)] == [0, 1]


async def test_the_end_of_a_run_does_not_wait_for_the_last_point() -> None:
    class Away(MemoryFrontier):
        async def progress(self, crawl: str) -> Progress:
            raise ServerUnreachable("cannot reach Redis")

    frontier = Away(clock=FakeClock())
    crawl = await frontier.open_crawl(Crawl(id="c", spider="s"))
    said: list[str] = []
    await Coordinator(crawl, frontier=frontier, show=lambda _: None, say=said.append).end_history()
    assert said == []


async def test_the_last_point_of_a_crawl_that_was_deleted_is_not_missed() -> None:
    frontier, crawl, _ = await opened()
    await frontier.delete_crawl("c")
    await Coordinator(crawl, frontier=frontier, show=lambda _: None, say=print).end_history()


@pytest.mark.parametrize("beat_of_old", [b'{"worker":"w","crawl":"c","host":"h","pid":1,"version":"0","slots":4}'])
def test_a_sign_of_life_of_an_older_worker_has_no_figures(beat_of_old: bytes) -> None:
    assert msgspec.json.decode(beat_of_old, type=Heartbeat).figures == Figures()
