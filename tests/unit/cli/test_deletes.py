"""What `shoal delete` does to a crawl before it removes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli.delete import AlsoDelete, Deleter
from shoal.cli.display.screen import Screen
from shoal.crawl.opening import Places, shared_results
from shoal.model import Crawl, CrawlState
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.memory_frontier import MemoryFrontier


class Watched(MemoryFrontier):
    """Notes the states that a crawl is given."""

    given: tuple[CrawlState, ...] = ()

    async def set_state(self, crawl: str, state: CrawlState, *, reason: str = "") -> None:
        self.given = (*self.given, state)
        await super().set_state(crawl, state, reason=reason)


@pytest.mark.parametrize(("also", "given"), [(AlsoDelete(), ()), (AlsoDelete(log=True), (CrawlState.CANCELLED,))])
async def test_an_unfinished_crawl_is_cancelled_only_where_more_goes_than_what_the_frontier_has(
    tmp_path: Path, also: AlsoDelete, given: tuple[CrawlState, ...]
) -> None:
    # To cancel one in a file changes each of its tasks in one transaction, for which all others wait.
    frontier = Watched(clock=FakeClock())
    crawl = await frontier.open_crawl(Crawl(id="books-1", spider="books"))
    await frontier.put(crawl.id, [make_task(1)])
    (tmp_path / "shoal.db").touch()
    places = Places(frontier=str(tmp_path / "shoal.db"), store=str(tmp_path / "shoal.db"))
    async with shared_results() as results:
        deleter = Deleter(frontier, results, places=places, also=also, screen=Screen())
        await deleter.carry_out(await deleter.plan(crawl), crawl)
    assert frontier.given == given
    assert await frontier.crawls() == []
