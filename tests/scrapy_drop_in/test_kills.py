"""A Scrapy process that is killed again and again loses nothing: where others lost one page in ten."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from scrapy_project import Project

from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import SiteProcess, site_process

PAGES = 400
KILLS = (60, 150, 260)
FLUSH_PAGES = 16
IN_HAND = 64  # pages in hand are twice the slots, and slots twice the 16 requests that Scrapy sends at once
SECONDS = 120.0


def pages(site: SiteProcess) -> Counter[str]:
    return Counter(hit.path for hit in site.hits() if hit.path != "/robots.txt")


def wait_for(site: SiteProcess, number: int) -> None:
    until = time.monotonic() + SECONDS
    while len(pages(site)) < number:
        assert time.monotonic() < until, f"{len(pages(site))} of {number} pages"
        time.sleep(0.02)


@pytest.mark.parametrize("backend", ["sqlite", "redis"])
def test_the_only_process_is_killed_three_times(project: Project, tmp_path: Path, backend: str) -> None:
    """Slow, about 25 s: four starts of Scrapy, three of which end by SIGKILL in the middle of the crawl."""
    redis = RedisServer(tmp_path / "redis").start() if backend == "redis" else None
    try:
        with site_process("--graph", str(PAGES), log=tmp_path / "hits.jsonl") as site:
            project.write(site.url, frontier=redis.url if redis else "shoal.db")
            for number in KILLS:
                process = project.start("-s", f"SHOAL_FLUSH_PAGES={FLUSH_PAGES}")
                try:
                    wait_for(site, number)
                finally:
                    process.kill()
                    process.communicate()
            project.run()
            places = ("--frontier", redis.url) if redis else ()
            hits = pages(site)
            assert len(hits) == PAGES
            # Asked for again: what a killed process had in hand, and what was done and not yet written.
            assert sum(hits.values()) - PAGES <= len(KILLS) * (IN_HAND + 2 * FLUSH_PAGES)
            status = project.shoal("status", "pages-1", *places)
            counts = (status["state"], status["progress"]["done"], status["progress"]["dead"], status["left"])
            assert counts == ("finished", PAGES, 0, 0)
            assert sorted(int(item["key"]) for item in project.items(*places)) == list(range(PAGES))
    finally:
        if redis is not None:
            redis.stop()
