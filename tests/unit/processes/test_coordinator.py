"""What a coordinator tells people while it watches."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from shoal.crawl.record import CrawlRecord
from shoal.model import Budgets, Crawl, Done, ExitUse, Heartbeat, LaneUpdate, Pool
from shoal.policy.politeness import lent_interval
from shoal.run.coordinator import Coordinator
from shoal.settings.table import Settings
from shoal.testing.clock import FakeClock
from shoal.testing.fakes import task_for
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.worker.machine import this_machine


def show(_: Any) -> None:
    """Does nothing: the test looks at `say`."""


async def test_a_spent_budget_is_said_once() -> None:
    frontier, said = MemoryFrontier(clock=FakeClock()), list[str]()
    pool = Pool(name="ring", exits=("x",), interval=0.0, cost=0.5)
    crawl = await frontier.open_crawl(Crawl(id="c", spider="s", pools=(pool,), budgets=Budgets(cost=0.5)))
    urls = ["https://a.test/1", "https://a.test/2"]
    await frontier.put("c", [task_for(url, lane="a.test via ring", pool="ring") for url in urls])
    coordinator = Coordinator(crawl, frontier=frontier, show=show, say=said.append)
    (lease,) = (await frontier.lease(["c"], 1, worker="w", seconds=60.0, horizon=1.0)).leases
    await coordinator.snapshot()
    assert said == []
    await frontier.settle([Done(lease=lease, exit=ExitUse())])
    await frontier.lease(["c"], 1, worker="w", seconds=60.0, horizon=1.0)
    await coordinator.snapshot()
    await coordinator.snapshot()
    assert said == ["the budget of 0.5 is spent: the crawl is paused; run it again with --set budget=MORE"]


def beat(name: str, **fields: Any) -> Heartbeat:
    return Heartbeat(**{"worker": name, "crawl": "c", "host": "h", "pid": 1, "version": "0", "slots": 4, **fields})


def pid_of_the_past() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        return ended.pid


async def test_a_worker_whose_process_has_ended_is_not_at_work() -> None:
    frontier = MemoryFrontier(clock=FakeClock())
    crawl = await frontier.open_crawl(Crawl(id="c", spider="s"))
    await frontier.put("c", [task_for("https://a.test/")])
    coordinator = Coordinator(crawl, frontier=frontier, show=show, say=print)
    await frontier.beat(beat("w", pid=pid_of_the_past(), machine=this_machine()))
    snapshot = await coordinator.snapshot()
    assert (snapshot.bound, list(snapshot.workers)) == ("workers: none is at work", [])
    await frontier.beat(beat("v", pid=os.getpid(), machine=this_machine()))
    assert [worker.worker for worker in (await coordinator.snapshot()).workers] == ["v"]


async def test_the_troubles_of_workers_are_said_once_while_they_last() -> None:
    frontier, said = MemoryFrontier(clock=FakeClock()), list[str]()
    crawl = await frontier.open_crawl(Crawl(id="c", spider="s"))
    coordinator = Coordinator(crawl, frontier=frontier, show=show, say=said.append)
    refused, waits = "login refused: shop/anna: the spider's login returned False", "the store: waiting for 3 s: gone"
    for name in ("w1", "w2"):
        await frontier.beat(beat(name, troubles=(refused, waits)))
    await coordinator.snapshot()
    await coordinator.snapshot()
    assert said == [refused]
    for name in ("w1", "w2"):
        await frontier.beat(beat(name))
    await coordinator.snapshot()
    await frontier.beat(beat("w1", troubles=(refused,)))
    await coordinator.snapshot()
    assert said == [refused, refused]


@pytest.mark.parametrize(
    ("rules", "origin"),
    [
        (b"user-agent:*\ncrawl-delay:5", "slower than asked for: robots.txt has Crawl-delay 5 s"),
        (b"user-agent:*\ndisallow:/private", "set by `shoal pace`"),
    ],
)
async def test_a_pace_that_nobody_asked_for_is_compared_with_robots_txt(rules: bytes, origin: str) -> None:
    frontier = MemoryFrontier(clock=FakeClock())
    record = msgspec.to_builtins(CrawlRecord(settings=Settings(), start_lanes=(), spider="s.py"))
    crawl = await frontier.open_crawl(Crawl(id="c", spider="s", needs_rules=True, settings=record))
    await frontier.put("c", [task_for(f"https://a.test/{number}") for number in range(3)])
    five = lent_interval(5.0)
    update = LaneUpdate(rules=rules, rules_seconds=60.0, interval=five, base_interval=five)
    await frontier.update_lane("c", "a.test", update)
    await frontier.lease(["c"], 1, worker="w", seconds=60.0, horizon=0.0)
    await frontier.beat(beat("w"))
    coordinator = Coordinator(crawl, frontier=frontier, show=show, say=print)
    assert (await coordinator.snapshot()).bound == f"politeness: a.test at 12/m, {origin}"
