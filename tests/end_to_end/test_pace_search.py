"""Two workers that search the pace of a host with a knee, by the host's own clock."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shoal.insight.bounds import why_so
from shoal.policy.politeness import allowed_interval
from shoal.testing.sites.knee_site import KneeSite
from shoal.testing.sites.loopback import Hit
from shoal.testing.waiting import eventually

pytestmark = pytest.mark.full

BEARS, MOST = 30.0, 45
RATE, MAX_RATE = "12/s", "200/s"
LATENCY = 0.1
SETTLED_SECONDS = 6.0
LONGEST = 60.0
LONGEST_OVER = 2.0
WARM_UP, COUNTED = 20, 60
SPIDER = """
from shoal import Spider

class Graph(Spider):
    def parse(self, page):
        yield page.follow("a")
"""


def per_second(hits: list[Hit], seconds: float, until: float) -> float:
    return sum(until - seconds <= hit.time < until for hit in hits) / seconds


def longest_over(hits: list[Hit], most: float) -> float:
    """For how long at once the second up to a request had more requests than so."""
    longest, since = 0.0, None
    for index, hit in enumerate(hits):
        first = index
        while first and hits[first - 1].time > hit.time - 1.0:
            first -= 1
        if index - first + 1 <= most:
            since = None
            continue
        since = hit.time if since is None else since
        longest = max(longest, hit.time - since)
    return longest


async def why_of(crawl: Any) -> str:
    """What people read of its host."""
    async with crawl.opened() as (frontier, _):
        lane = next(iter(await frontier.lanes(crawl.crawl)), None)
        known = next(one for one in await frontier.crawls() if one.id == crawl.crawl)
        return "" if lane is None else why_so(lane, known)


async def interval_of(crawl: Any) -> float:
    async with crawl.opened() as (frontier, _):
        return float((await frontier.lanes(crawl.crawl))[0].interval)


async def stop(crawl: Any) -> None:
    """End its workers in good order: nothing of it is in flight after that."""
    for worker in crawl.workers:
        worker.terminate()
    for worker in crawl.workers:
        await asyncio.to_thread(worker.wait, LONGEST)


async def test_a_fleet_settles_a_little_below_what_a_host_bears(new_crawl: Any, tmp_path: Path) -> None:
    # Half a minute: a dozen steps up, each with answers enough to tell that they come as fast as before, and one back.
    (tmp_path / "graph.py").write_text(SPIDER)
    async with KneeSite(pages=5000, bears=BEARS, latency=LATENCY, rate_limit=(MOST, 1.0)) as site:
        settings = {"rate": RATE, "pace": "search", "max_rate": MAX_RATE, "per_host": 24}
        crawl = await new_crawl(spider=str(tmp_path / "graph.py"), start=site.url, **settings)
        for _ in range(2):
            crawl.start_worker()

        async def is_held() -> bool:
            return "held below its knee" in await why_of(crawl)

        await eventually(is_held, seconds=LONGEST, pause=0.2)
        found = site.requests[-1].time

        def has_settled() -> bool:
            last = site.requests[-1].time
            pace = per_second(site.requests, SETTLED_SECONDS, last)
            return last > found + SETTLED_SECONDS and 0.8 * BEARS <= pace <= BEARS

        await eventually(has_settled, seconds=LONGEST, pause=0.2)
        said = await why_of(crawl)
        await stop(crawl)
        assert said.startswith("searching, ")
        assert "knee near" in said
        assert longest_over(site.requests, MOST) <= LONGEST_OVER
        assert sum(hit.status == 429 for hit in site.requests) < 0.02 * len(site.requests)

        # What was learnt of the host is kept for the next crawl, also when nothing else of this one is.
        async with crawl.opened() as (frontier, _):
            assert await frontier.delete_crawl(crawl.crawl)
        following = await new_crawl(spider=str(tmp_path / "graph.py"), start=site.url, **settings)
        assert 0.7 * BEARS <= 1 / allowed_interval(await interval_of(following)) <= 1.1 * BEARS
        begun = len(site.requests)
        following.start_worker()
        await eventually(lambda: len(site.requests) > begun + WARM_UP + COUNTED, seconds=LONGEST)
        counted = site.requests[begun + WARM_UP :][:COUNTED]
        assert (COUNTED - 1) / (counted[-1].time - counted[0].time) > 0.6 * BEARS
