"""Start requests that come while the process has nothing to do."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from scrapy_project import Project

from shoal.testing.sites.site_process import site_process
from shoal.worker.worker import LONGEST_WAIT_SECONDS

pytestmark = pytest.mark.full

ONE_BY_ONE = """
    async def start(self):
        import asyncio
        self.is_parsed = asyncio.Event()
        for number in range(12):
            self.is_parsed.clear()
            yield scrapy.Request(self.start_urls[0].replace("/g/0", f"/g/{number}"))
            await self.is_parsed.wait()

    def parse(self, response):
        self.is_parsed.set()
        yield {"key": response.url}
"""


def test_a_start_request_that_comes_late_is_sent_at_once(project: Project, tmp_path: Path) -> None:
    with site_process("--graph", "12", log=tmp_path / "hits.jsonl") as site:
        project.write(site.url, ONE_BY_ONE)
        project.run()
        times = sorted(hit.time for hit in site.hits() if hit.path != "/robots.txt")
    assert len(times) == 12
    # A worker that found nothing to lease asks again after half a second, unless it is told.
    assert median(after - before for before, after in pairwise(times)) < 0.7 * LONGEST_WAIT_SECONDS
