"""A host's cap holds for a whole fleet, by the host's own count, while handlers are slow and a worker is killed."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from shoal.testing.sites.graph_site import GraphSite
from shoal.testing.waiting import eventually

pytestmark = pytest.mark.full

PAGES, CAP = 200, 4
# A request takes 50 ms, its handler four times as long: places are free again long before their pages are settled.
LATENCY_SECONDS = 0.05
SPIDER = """
import asyncio
from shoal import Item, Spider

class Slow(Spider):
    async def parse(self, page):
        await asyncio.sleep(0.2)
        yield Item(key=page.url, number=page.text("h1"))
        yield page.follow("a")
"""


async def test_a_cap_holds_for_all_workers_while_handlers_are_slow_and_one_is_killed(
    new_crawl: Any, tmp_path: Path
) -> None:
    # Eight seconds: 80 pages a second are all that the cap allows, and the leases of the killed worker have to run out.
    # Short leases would be lost on a busy machine while their requests are on their way.
    (tmp_path / "slow.py").write_text(SPIDER)
    async with GraphSite(pages=PAGES, latency=LATENCY_SECONDS) as site:
        crawl = await new_crawl(
            spider=str(tmp_path / "slow.py"),
            start=site.url,
            rate="unlimited",
            per_host=CAP,
            lease_seconds=3.0,
            max_attempts=50,
        )
        crew = [crawl.start_worker(at="settle", call=3)]
        await eventually(lambda: site.requests)
        crew += [crawl.start_worker() for _ in range(2)]
        ends = await asyncio.gather(*(asyncio.to_thread(worker.wait, 120) for worker in crew))
        progress = await crawl.check(PAGES)
    assert ends == [-signal.SIGKILL, 0, 0]
    assert progress.lost
    assert site.peak_in_flight == {"127.0.0.1": CAP}
