"""Two crawls of one host, seen by the host: together they stay within the strictest of their limits, and share it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.model import CrawlState
from shoal.testing.chaos.report import pace_of
from shoal.testing.servers.redis_sentinels import RedisSentinels
from shoal.testing.servers.redis_server import RedisCluster, RedisServer
from shoal.testing.sites.loopback import Hit
from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import eventually

PAGES = 36
WORKERS = 2  # of each crawl
STRICT, QUICK = "strict", "quick"
RATES = {STRICT: "6/s", QUICK: "20/s"}
STRICTEST = 6
# How far one crawl may get ahead: what starts within a call's horizon, and what is on its way.
AHEAD = 4
# What was lent before the other crawl came has started by then.
LENT_SECONDS = 1.0
SPIDER = """
from shoal.testing.chaos.graph_spider import Graph

class {kind}(Graph):
    name = "{name}"
"""


@pytest.fixture
def frontier(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Where both crawls are; empty: in the file of the store."""
    match request.param:
        case "sqlite":
            yield ""
        case "redis":
            server = RedisServer(tmp_path / "redis").start()
            yield server.url
            server.kill()
        case "sentinels":
            sentinels = RedisSentinels(tmp_path / "redis")
            sentinels.wait()
            yield sentinels.url
            sentinels.kill()
        case "cluster":
            cluster = RedisCluster(tmp_path / "redis").start()
            yield f"{cluster.url}?shards=5"
            cluster.kill()


@pytest.fixture
def new_pair(tmp_path: Path, new_crawl: Callable[..., Any]) -> Callable[..., Any]:
    """Two crawls of two spiders, which the site tells apart by what they call themselves."""

    async def make(frontier: str, **settings: Any) -> dict[str, Any]:
        pair = {}
        for name, rate in RATES.items():
            (tmp_path / f"{name}.py").write_text(SPIDER.format(kind=name.title(), name=name))
            pair[name] = await new_crawl(
                frontier,
                spider=f"{tmp_path / name}.py:{name.title()}",
                rate=rate,
                user_agent=name,
                pace="fixed",
                obey_robots=True,
                horizon_seconds=0.3,
                **{"lease_seconds": 3.0, "per_host": 32, **settings},
            )
        # Paused until all workers are there: the quick crawl would else be over before the other one has started.
        async with pair[STRICT].opened() as (opened, _):
            for crawl in pair.values():
                await opened.set_state(crawl.crawl, CrawlState.PAUSED)
                for _ in range(WORKERS):
                    crawl.start_worker()

            async def all_there() -> bool:
                return len(await opened.workers()) == WORKERS * len(pair)

            await eventually(all_there)
            for crawl in pair.values():
                await opened.set_state(crawl.crawl, CrawlState.RUNNING)
        return pair

    return make


async def wait_for_hits(site: SiteProcess, name: str, number: int) -> None:
    async def is_so() -> bool:
        return len(of(site.hits(), name)) >= number

    await eventually(is_so)


async def finish(crawl: Any) -> None:
    """Its workers end with the crawl."""
    async with asyncio.timeout(60):
        for worker in crawl.workers[-WORKERS:]:
            assert await asyncio.to_thread(worker.wait) == 0


def of(hits: list[Hit], name: str) -> list[Hit]:
    return [hit for hit in hits if hit.user_agent == name]


def between(hits: list[Hit], first: Hit, last: Hit) -> list[Hit]:
    return [hit for hit in hits if first.time <= hit.time <= last.time]


# Fifteen seconds: 72 pages at six a second. The one proof that real workers of two crawls, of which some are killed and
# come back, are to the host what one polite crawl is.
@pytest.mark.parametrize(
    "frontier",
    ["sqlite", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("redis", "sentinels", "cluster"))],
    indirect=True,
)
@pytest.mark.parametrize("graph", [PAGES], indirect=True)
async def test_four_workers_of_two_crawls_keep_the_strictest_pace_and_share_it(
    frontier: str, graph: SiteProcess, new_pair: Callable[..., Any]
) -> None:
    pair = await new_pair(frontier)
    strict, quick = pair[STRICT], pair[QUICK]
    await wait_for_hits(graph, STRICT, 14)
    strict.end_workers()
    killed = graph.hits()
    # The other crawl goes on.
    await wait_for_hits(graph, QUICK, len(of(killed, QUICK)) + 6)
    for _ in range(WORKERS):
        strict.start_worker()
    await finish(quick)
    await finish(strict)
    hits = graph.hits()
    for crawl in (strict, quick):
        await crawl.check(PAGES)
    came = max(of(hits, name)[0].time for name in RATES)
    both = next(hit for hit in hits if hit.time > came + LENT_SECONDS)
    assert pace_of(between(hits, both, of(hits, STRICT)[-1]), rate=STRICTEST).violations == 0
    assert sum(hit.path == "/robots.txt" for hit in hits) == 1
    back = of(hits[len(killed) :], STRICT)[AHEAD]
    for first, last in ((both, killed[-1]), (back, of(hits, QUICK)[-1])):
        shared = between(hits, first, last)
        counts = {name: len(of(shared, name)) for name in RATES}
        assert abs(counts[STRICT] - counts[QUICK]) <= AHEAD, counts


# Three seconds: what `pace_scope = "crawl"` is for, and that the test above can fail.
@pytest.mark.full
@pytest.mark.parametrize("frontier", ["sqlite", "redis"], indirect=True)
@pytest.mark.parametrize("graph", [PAGES], indirect=True)
async def test_crawls_with_a_pace_of_their_own_are_more_to_the_host_than_one(
    frontier: str, graph: SiteProcess, new_pair: Callable[..., Any]
) -> None:
    pair = await new_pair(frontier, pace_scope="crawl")
    for crawl in pair.values():
        await finish(crawl)
        await crawl.check(PAGES)
    hits = graph.hits()
    ours = of(hits, STRICT)
    assert pace_of(between(hits, ours[0], ours[-1]), rate=STRICTEST).violations > AHEAD
    assert pace_of(ours, rate=STRICTEST).violations == 0
    assert sum(hit.path == "/robots.txt" for hit in hits) == 2
