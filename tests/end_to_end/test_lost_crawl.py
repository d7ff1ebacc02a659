"""A Redis server that lost a crawl while it was worked on: everybody is told what happened, and how to begin again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.exceptions import OutOfMemoryError
from redis_fleet import RedisFleet, ended, fleet_on_a_graph

from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.waiting import wait_for_line

PAGES = 400


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis", "--appendonly", "no").start()
    yield server
    server.kill()


@pytest.fixture
def fleet(tmp_path: Path, server: RedisServer) -> Iterator[RedisFleet]:
    with fleet_on_a_graph(tmp_path, server, pages=PAGES) as fleet:
        yield fleet


def test_a_server_that_was_emptied_ends_the_run_with_the_reason(fleet: RedisFleet, server: RedisServer) -> None:
    running = fleet.start("run", fleet.spider(rate="20/s"), "--workers", "2")
    fleet.wait_for_pages(5)
    server.call("FLUSHALL")
    _, err, code = ended(running)
    assert (code, "Traceback" in err) == (1, False), err
    assert f"the data of crawl graph-1 are gone from {server.url}" in err
    assert "somebody emptied it (FLUSHALL, FLUSHDB, DEL)" in err
    assert f"shoal run graph.py --workers 2 --skip-stored REGEX --frontier {server.url}" in err
    assert (err.count("are gone from"), err.count("--skip-stored REGEX")) == (1, 1), err


@pytest.mark.full
def test_a_restart_without_a_file_is_named(fleet: RedisFleet, server: RedisServer) -> None:
    running = fleet.start("run", fleet.spider(rate="20/s"), "--workers", "2")
    fleet.wait_for_pages(5)
    server.kill()
    server.start()
    _, err, code = ended(running)
    assert (code, "Traceback" in err) == (1, False), err
    assert "the server was restarted" in err
    assert "keeps nothing on disk (appendonly no, save '')" in err
    assert err.count("are gone from") == 1, err


@pytest.mark.full
def test_a_server_that_evicts_keys_is_named_as_the_cause(fleet: RedisFleet, server: RedisServer) -> None:
    server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    running = fleet.start("run", fleet.spider(rate="20/s"))
    fleet.wait_for_pages(5)
    server.call("CONFIG", "SET", "maxmemory", "1")
    eventually_empty(server)
    server.call("CONFIG", "SET", "maxmemory", "0")
    _, err, code = ended(running)
    assert (code, "Traceback" in err) == (1, False), err
    assert "the server evicts keys when its memory is full (maxmemory-policy allkeys-lru): set it to noeviction" in err


def eventually_empty(server: RedisServer) -> None:
    """Every write evicts keys; it is refused when none is left."""
    while server.call("DBSIZE"):
        with contextlib.suppress(OutOfMemoryError):
            server.call("SET", "key", "value")


@pytest.mark.full
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


@pytest.mark.full
def test_a_crawl_that_was_deleted_on_purpose_is_not_called_lost(fleet: RedisFleet) -> None:
    spider = fleet.spider(rate="20/s")
    run = fleet.start("run", spider)
    fleet.wait_for_pages(2)
    fresh = fleet.start("run", fleet.spider(), "--fresh", "--yes")
    _, err, _ = ended(run)
    assert "are gone from" not in err
    _, err, code = ended(fresh)
    assert code == 0, err
