"""A feeder of a chaos run: a coordinator in a process of its own that feeds the URLs on its standard input.

SHOAL_FRONTIER=… python -m shoal.testing.chaos.feeder_process CRAWL
"""

from __future__ import annotations

import asyncio
import os
import sys

from shoal import Stdin
from shoal.crawl.opening import frontier_at
from shoal.crawl.record import record_of
from shoal.insight.stats import Snapshot
from shoal.run.coordinator import Coordinator
from shoal.run.intakes import intake_of
from shoal.settings.table import FRONTIER_VARIABLE
from shoal.spider.loading import load_spider
from shoal.worker.outages import until_reachable


async def feed(crawl_id: str) -> None:
    """Feed until the input ends."""
    async with frontier_at(os.environ[FRONTIER_VARIABLE], wait=_say) as frontier:
        crawls = await until_reachable(frontier.crawls, say=_say)
        crawl = next(crawl for crawl in crawls if crawl.id == crawl_id)
        kind = load_spider(record_of(crawl).spider)
        spider = type(kind.__name__, (kind,), {"start": Stdin(), "name": crawl.spider})()
        coordinator = Coordinator(crawl, frontier=frontier, show=_unseen, say=_say)
        await coordinator.feed(spider, intake=intake_of(crawl))
        await coordinator.feeder.make_up()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _unseen(snapshot: Snapshot) -> None:
    """Show nothing: the run's own process does."""


if __name__ == "__main__":
    asyncio.run(feed(sys.argv[1]))
