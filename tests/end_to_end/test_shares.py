"""The pages of one host that its pace holds back, and who does them: every worker of a fleet that has room."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_fleet import RedisFleet, ended

from shoal.settings.table import Settings
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import site_process
from shoal.urls.canonical import lane_of

pytestmark = pytest.mark.full

PAGES = 240
WORKERS = 3


@pytest.fixture(params=["sqlite", "redis"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisFleet]:
    """A fleet over each frontier."""
    server = RedisServer(tmp_path / "redis").start() if request.param == "redis" else None
    url = str(tmp_path / "shoal.db") if server is None else server.url
    try:
        with site_process("--graph", str(PAGES), "--latency", "0.02", log=tmp_path / "hits.jsonl") as site:
            fleet = RedisFleet(tmp_path, site, url)
            yield fleet
            fleet.end()
    finally:
        if server is not None:
            server.stop()


def shares(fleet: RedisFleet) -> list[int]:
    """How many pages each worker fetched."""
    with contextlib.closing(sqlite3.connect(fleet.folder / "shoal.db")) as db:
        return [pages for _, pages in db.execute("SELECT worker, count(*) FROM fetch GROUP BY worker")]


# The host is let go when all three workers have started: how long a process takes to start says nothing about shares.
def test_every_worker_with_room_gets_its_share_of_a_paced_host(fleet: RedisFleet) -> None:
    run = fleet.start("run", fleet.spider(rate="1/m", per_host=Settings().per_host), "--workers", str(WORKERS))
    fleet.wait_for_workers(WORKERS)
    fleet.shoal("pace", lane_of(fleet.site.url), "40/s")
    _, err, code = ended(run)
    assert code == 0, err
    fleet.check(PAGES)
    pages = shares(fleet)
    assert len(pages) == WORKERS, pages
    assert min(pages) >= 0.15 * PAGES, pages
    assert max(pages) <= 0.6 * PAGES, pages
