"""What a coordinator tells people while it watches."""

from __future__ import annotations

from typing import Any

from shoal.model import Budgets, Crawl, Done, ExitUse, Pool
from shoal.processes.coordinator import Coordinator
from shoal.testing.clock import FakeClock
from shoal.testing.fakes import MemoryStore, task_for
from shoal.testing.model.memory_frontier import MemoryFrontier


def show(_: Any) -> None:
    """Does nothing: the test looks at `say`."""


async def test_a_spent_budget_is_said_once() -> None:
    frontier, said = MemoryFrontier(clock=FakeClock()), list[str]()
    pool = Pool(name="ring", exits=("x",), interval=0.0, cost=0.5)
    crawl = await frontier.open_crawl(Crawl(id="c", spider="s", pools=(pool,), budgets=Budgets(cost=0.5)))
    urls = ["https://a.test/1", "https://a.test/2"]
    await frontier.put("c", [task_for(url, lane="a.test via ring", pool="ring") for url in urls])
    coordinator = Coordinator(crawl, frontier=frontier, store=MemoryStore(), show=show, say=said.append)
    (lease,) = (await frontier.lease(["c"], 1, worker="w", seconds=60.0, horizon=1.0)).leases
    await coordinator.look()
    assert said == []
    await frontier.settle([Done(lease=lease, exit=ExitUse())])
    await frontier.lease(["c"], 1, worker="w", seconds=60.0, horizon=1.0)
    await coordinator.look()
    await coordinator.look()
    assert said == ["the budget of 0.5 is spent: the crawl is paused; run it again with --set budget=MORE"]
