"""A Redis server that lost a crawl while it was worked on: everybody is told what happened, and how to begin again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_fleet import RedisFleet, ended

from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import site_process
from shoal.testing.waiting import wait_for_line

PAGES = 400


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis", "--appendonly", "no").start()
    yield server
    server.kill()


@pytest.fixture
def fleet(tmp_path: Path, server: RedisServer) -> Iterator[RedisFleet]:
    with site_process("--graph", str(PAGES), log=tmp_path / "hits.jsonl") as site:
        fleet = RedisFleet(tmp_path, site, server.url)
        yield fleet
        fleet.end()


def test_a_server_that_was_emptied_ends_the_run_with_the_reason(fleet: RedisFleet, server: RedisServer) -> None:
    running = fleet.start("run", fleet.spider(rate="20/s"))
    fleet.wait_for_pages(5)
    server.call("FLUSHALL")
    _, err, code = ended(running)
    assert (code, "Traceback" in err) == (1, False), err
    assert f"the data of crawl graph-1 are gone from {server.url}" in err
    assert "somebody emptied it (FLUSHALL, FLUSHDB, DEL)" in err
    assert "--skip-stored" in err


def test_a_restart_without_a_file_is_named(fleet: RedisFleet, server: RedisServer) -> None:
    running = fleet.start("run", fleet.spider(rate="20/s"), "--workers", "2")
    fleet.wait_for_pages(5)
    server.kill()
    server.start()
    _, err, code = ended(running)
    assert (code, "Traceback" in err) == (1, False), err
    assert "the server was restarted" in err
    assert "keeps nothing on disk (appendonly no, save '')" in err


def test_a_worker_that_waits_for_crawls_says_it_and_waits(fleet: RedisFleet, server: RedisServer) -> None:
    spider = fleet.spider(rate="20/s")
    run = fleet.start("run", spider)
    fleet.wait_for_pages(2)
    worker = fleet.start("worker", spider)
    wait_for_line(worker.stderr, "took up graph-1")
    server.call("FLUSHALL")
    wait_for_line(worker.stderr, "this worker waits for a new crawl")
    ended(run)
    again = fleet.start("run", spider, "--fresh")
    wait_for_line(worker.stderr, "took up graph-")
    again.kill()


def test_a_crawl_that_was_deleted_on_purpose_is_not_called_lost(fleet: RedisFleet) -> None:
    spider = fleet.spider(rate="20/s")
    run = fleet.start("run", spider)
    fleet.wait_for_pages(2)
    fresh = fleet.start("run", fleet.spider(), "--fresh", "--yes")
    _, err, _ = ended(run)
    assert "are gone from" not in err
    _, err, code = ended(fresh)
    assert code == 0, err
