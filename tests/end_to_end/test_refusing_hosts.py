"""Hosts that refuse some requests with `Retry-After: 1`, and the pace at which real workers end up asking them."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.testing.sites.loopback import Hit
from shoal.testing.sites.site import GraphSite

pytestmark = pytest.mark.full

PAGES = 240
RATE = 20
WARM_UP = 40
SPIDER = """
from shoal import Spider

class Graph(Spider):
    start = ["{url}"]
    rate = "{rate}/s"
    settings = {{"allow_private": True, "obey_robots": False}}

    def parse(self, page):
        yield page.follow("a")
"""


@dataclass
class Bucket:
    """Refuses what comes faster than so many requests per second."""

    bears: float
    tokens: float = 5.0
    at: float = 0.0

    def __call__(self, now: float) -> bool:
        self.tokens = min(5.0, self.tokens + (now - self.at) * self.bears)
        self.at = now
        if self.tokens < 1:
            return True
        self.tokens -= 1
        return False


def every_tenth() -> Callable[[float], bool]:
    count = itertools.count(1)
    return lambda now: next(count) % 10 == 0


# Fourteen seconds each: 240 pages at twenty per second. Before, one crawl took a quarter of an hour.
@pytest.mark.parametrize(
    ("refuses", "workers"), [(every_tenth, 3), (lambda: Bucket(18.0), 1)], ids=["every tenth page", "above 18/s"]
)
async def test_a_host_that_bears_most_of_the_rate_gets_most_of_the_rate(
    tmp_path: Path, refuses: Callable[[], Callable[[float], bool]], workers: int
) -> None:
    async with GraphSite(pages=PAGES) as site:
        site.server.refuses = refuses()
        (tmp_path / "graph.py").write_text(SPIDER.format(url=site.url, rate=RATE))
        command = [sys.executable, "-m", "shoal", "run", "graph.py", "--workers", str(workers)]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        run = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, env=environ, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
        )
        _, errors = await run.communicate()
        assert run.returncode == 0, errors.decode()
        assert {hit.path for hit in site.requests if hit.status == 200} == {f"/g/{number}" for number in range(PAGES)}
        assert pace_of(site.requests) > RATE / 2
        assert pace_of(site.requests) < 1.05 * RATE


def pace_of(hits: list[Hit]) -> float:
    """Requests per second by the site's clock, without the first ones and the last retries."""
    counted = hits[WARM_UP:PAGES]
    return (len(counted) - 1) / (counted[-1].time - counted[0].time)
