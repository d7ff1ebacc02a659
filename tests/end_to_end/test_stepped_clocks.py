"""Crawls over a Redis server whose clock is stepped, that stands still, or whose worker is frozen; the site judges."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis_fleet import RedisFleet, ended

from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.loopback import busiest_window
from shoal.testing.sites.site_process import SiteProcess, site_process
from shoal.testing.waiting import wait_until

pytestmark = pytest.mark.full

HOUR = 3600.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis", own_clock=True).start()
    yield server
    server.kill()


@pytest.fixture
def fleet(tmp_path: Path, server: RedisServer) -> Iterator[Callable[[SiteProcess], RedisFleet]]:
    fleets: list[RedisFleet] = []

    def begin(site: SiteProcess) -> RedisFleet:
        fleets.append(RedisFleet(tmp_path, site, server.url))
        return fleets[-1]

    yield begin
    for fleet in fleets:
        fleet.end()


def starts(site: SiteProcess) -> list[float]:
    """When the site was asked for pages, by its own clock."""
    return sorted(hit.time for hit in site.hits())


def wait_for_hits(site: SiteProcess, number: int) -> None:
    wait_until(lambda: len(site.hits()) >= number, otherwise=f"the site saw no {number} requests", seconds=30.0)


def test_the_clock_of_a_server_is_stepped_while_it_runs_and_stays_so_after_a_restart(server: RedisServer) -> None:
    def ahead() -> float:
        return float(server.call("TIME")[0]) - time.time()

    assert abs(ahead()) < 60
    server.step_clock(HOUR)
    assert abs(ahead() - HOUR) < 60
    server.step_clock(-2 * HOUR)
    assert abs(ahead() + HOUR) < 60
    server.restart()
    assert abs(ahead() + HOUR) < 60


# 130 pages at 20 a second: before, between and after two steps of the clock the pace must be seen for two seconds each.
def test_a_crawl_keeps_its_pace_when_the_clock_of_redis_is_stepped(
    tmp_path: Path, server: RedisServer, fleet: Callable[[SiteProcess], RedisFleet]
) -> None:
    pages, rate = 130, 20
    with site_process("--graph", str(pages), log=tmp_path / "hits.jsonl") as site:
        crawl = fleet(site)
        run = crawl.start("run", crawl.spider(rate=f"{rate}/s", lease_seconds=10.0), "--workers", "2")
        wait_for_hits(site, 40)
        server.step_clock(-HOUR)
        wait_for_hits(site, 80)
        server.step_clock(2 * HOUR)
        out, err, code = ended(run)
        assert code == 0, f"{out}\n{err}"
        progress = crawl.check(pages)
        assert progress.lost == 0
        # The step forward put a second's worth of starts on top: 20 more.
        assert busiest_window(site.hits()) <= rate * 1.25
        assert all(count == 1 for count in crawl.fetches().values())


# Twice for four seconds: a server that stands still for less than a lease would lose none anyway.
def test_no_lease_is_lost_when_redis_stands_still_for_longer_than_a_lease(
    tmp_path: Path, server: RedisServer, fleet: Callable[[SiteProcess], RedisFleet]
) -> None:
    pages, lease_seconds = 400, 2.0
    with site_process("--graph", str(pages), "--latency", "0.3", log=tmp_path / "hits.jsonl") as site:
        crawl = fleet(site)
        run = crawl.start("run", crawl.spider(lease_seconds=lease_seconds, max_attempts=1), "--workers", "2")
        for hits in (60, 200):
            wait_for_hits(site, hits)
            crawl.wait_for(lambda progress: progress.leased >= 8)
            server.pause()
            goes_on = time.time() + 2 * lease_seconds
            wait_until(lambda at=goes_on: time.time() > at, otherwise="time stands still")  # type: ignore[misc]  # bound now
            server.resume()
        out, err, code = ended(run)
        assert code == 0, f"{out}\n{err}"
        progress = crawl.check(pages)
        assert (progress.lost, progress.stale) == (0, 0)
        assert all(count == 1 for count in crawl.fetches().values())


# A dozen starts at two a second: late ones need an interval that is much longer than what a busy machine delays.
def test_starts_keep_their_distance_after_a_worker_was_frozen(
    tmp_path: Path, fleet: Callable[[SiteProcess], RedisFleet]
) -> None:
    interval = 0.5
    with site_process("--graph", "200", log=tmp_path / "hits.jsonl") as site:
        crawl = fleet(site)
        crawl.start("run", crawl.spider(rate="2/s"), "--workers", "1")
        wait_for_hits(site, 3)
        worker = crawl.busiest_worker().pid
        # The next start comes late by a fifth to two fifths of the interval: the one after it must keep its distance.
        for late in (0.1, 0.15, 0.2, 0.15):
            before = len(site.hits())
            wait_for_hits(site, before + 1)
            os.kill(worker, signal.SIGSTOP)
            thaws = site.hits()[-1].wall + interval + late
            wait_until(lambda at=thaws: time.time() > at, otherwise="time stands still")  # type: ignore[misc]  # bound now
            os.kill(worker, signal.SIGCONT)
            wait_for_hits(site, before + 3)
        gaps = [later - earlier for earlier, later in itertools.pairwise(starts(site))]
        # One request may have been frozen between the look at the clock and the send.
        assert sum(gap < 0.9 * interval for gap in gaps) <= 1, [f"{gap:.2f}" for gap in gaps]
