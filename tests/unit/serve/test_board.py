"""The list of crawls costs few calls of the frontier, however many crawls there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from shoal.crawl.code import SpiderCode
from shoal.crawl.record import CrawlRecord
from shoal.errors import CrawlLost
from shoal.model import Crawl, Heartbeat, LaneStatus, Progress
from shoal.serve.board import LOOK_SECONDS, Board
from shoal.settings.table import Settings
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.memory_frontier import MemoryFrontier

CRAWLS = 50


class CountedFrontier(MemoryFrontier):
    """A frontier in memory that counts what it is asked. `lost` names a crawl that is gone since it was listed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: Counter[str] = Counter()
        self.lost = ""

    async def progress(self, crawl: str) -> Progress:
        self.calls["progress"] += 1
        if crawl == self.lost:
            raise CrawlLost(f"{crawl} is gone")
        return await super().progress(crawl)

    async def lanes(self, crawl: str, *, limit: int = 100, skip: int = 0, search: str = "") -> list[LaneStatus]:
        self.calls["lanes"] += 1
        return await super().lanes(crawl, limit=limit, skip=skip, search=search)

    async def workers(self, *, within: float = 60.0) -> list[Heartbeat]:
        self.calls["workers"] += 1
        return await super().workers(within=within)


async def filled(clock: FakeClock) -> tuple[CountedFrontier, Sequence[Crawl]]:
    """Many crawls; one of them has something to do, and a worker."""
    frontier = CountedFrontier(clock=clock)
    for number in range(CRAWLS):
        await frontier.open_crawl(Crawl(id=f"c-{number}", spider="s"))
    await frontier.put("c-7", [make_task(1)])
    await frontier.beat(
        Heartbeat(worker="w", host="h", pid=1, crawl="c-7", version="0", slots=1, seen=clock(), started=clock())
    )
    return frontier, await frontier.crawls()


async def test_the_list_reads_the_workers_once_and_the_lanes_of_crawls_with_work() -> None:
    clock = FakeClock()
    frontier, crawls = await filled(clock)
    board = Board(clock=clock)
    rows = await board.summaries(crawls, frontier)
    assert [row.id for row in rows] == [crawl.id for crawl in crawls]
    assert {row.id: row.workers for row in rows if row.workers} == {"c-7": 1}
    assert frontier.calls == {"progress": CRAWLS, "lanes": 1, "workers": 1}
    await board.summaries(crawls, frontier)
    assert frontier.calls == {"progress": CRAWLS, "lanes": 1, "workers": 1}
    clock.advance(LOOK_SECONDS)
    await board.summaries(crawls, frontier)
    assert frontier.calls == {"progress": 2 * CRAWLS, "lanes": 2, "workers": 2}


async def test_a_crawl_that_is_gone_does_not_hide_the_others() -> None:
    clock = FakeClock()
    frontier, crawls = await filled(clock)
    frontier.lost = "c-3"
    rows = await Board(clock=clock).summaries(crawls, frontier)
    assert {row.id: row.refusal for row in rows if row.refusal} == {"c-3": "c-3 is gone"}
    assert len(rows) == CRAWLS


async def test_workers_with_other_code_than_the_crawls_are_counted() -> None:
    clock = FakeClock()
    frontier = CountedFrontier(clock=clock)
    record = CrawlRecord(settings=Settings(), code=SpiderCode(digest="new"))
    await frontier.open_crawl(Crawl(id="c", spider="s", settings=msgspec.to_builtins(record)))
    for code in ("", "old", "new"):
        await frontier.beat(Heartbeat(worker=code, host="h", pid=1, crawl="c", version="0", slots=1, code=code))
    (row,) = await Board(clock=clock).summaries(await frontier.crawls(), frontier)
    assert (row.workers, row.other_code) == (3, 1)
