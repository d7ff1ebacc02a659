"""The pace of a host by the site's own clock."""

from __future__ import annotations

from pathlib import Path

import pytest
from scrapy_project import Project

from shoal.frontier.clock import slack_of
from shoal.scrapy.visits import ENGINE_SLACK
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.loopback import pace_violations
from shoal.testing.sites.site_process import site_process
from shoal.testing.waiting import SECONDS

INTERVAL = 0.1
# A start may be late by the engine's slack; the way to the site, on a busy machine, may take as much again.
TOLERANCE = 2 * ENGINE_SLACK * slack_of(INTERVAL)
BLOCKING = """
    def parse(self, response):
        import time
        number = int(response.css("h1::text").get())
        yield {"key": number}
        time.sleep(BLOCKS[number % len(BLOCKS)])
        yield from response.follow_all(css="a", callback=self.parse)

BLOCKS = """


@pytest.mark.parametrize(
    "blocks",
    [pytest.param((0.0, 0.3, 0.05), id="now and then"), pytest.param((0.5,), id="always", marks=pytest.mark.full)],
)
def test_two_processes_keep_it_though_callbacks_block_the_reactor(
    project: Project, tmp_path: Path, redis: RedisServer, blocks: tuple[float, ...]
) -> None:
    with site_process("--graph", "24", log=tmp_path / "hits.jsonl") as site:
        project.write(site.url, f"{BLOCKING}{blocks}\n", frontier=redis.url)
        both = [project.start("-s", f"SHOAL_RATE={1 / INTERVAL:g}/s", "-s", "LOG_LEVEL=INFO") for _ in range(2)]
        outputs = [process.communicate(timeout=SECONDS)[0] for process in both]
        assert [process.returncode for process in both] == [0, 0], outputs
        hits = [hit for hit in site.hits() if hit.path != "/robots.txt"]
        assert sorted({hit.path for hit in hits}) == sorted(f"/g/{number}" for number in range(24))
        assert len(hits) == 24
        assert pace_violations(hits, interval=INTERVAL, tolerance=TOLERANCE) == 0
