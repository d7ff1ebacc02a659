"""A fleet over Redis as users see it: real processes, a real server that is killed, filled and steered."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from redis_fleet import RedisFleet, ended, keys_of

from shoal.model import CrawlState
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.loopback import Hit, busiest_window
from shoal.testing.sites.site_process import site_process
from shoal.testing.waiting import wait_until
from shoal.worker.outages import WAITING

PAGES = 300
SECRET = "s3cr3t"
FULL = "is at maxmemory: raise it (redis-cli CONFIG SET maxmemory"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.stop()


@pytest.fixture
def fleet(tmp_path: Path, server: RedisServer) -> Iterator[RedisFleet]:
    with site_process("--graph", str(PAGES), "--latency", "0.02", log=tmp_path / "hits.jsonl") as site:
        fleet = RedisFleet(tmp_path, site, server.url)
        yield fleet
        fleet.end()


def waits_for(errors: Path, why: str) -> list[str]:
    """The messages that say that somebody waits for this reason; the progress line may say so as well."""
    return [line for line in errors.read_text().splitlines() if why in line and line.endswith(WAITING)]


# Four processes that see one crawl to its end: slow until all of them work, so that the last one joins in time.
def test_a_fleet_fetches_every_page_once_and_another_worker_may_join(fleet: RedisFleet) -> None:
    spider = fleet.spider(rate="10/s")
    run = fleet.start("run", spider, "--workers", "2", "--json")
    fleet.wait_for_pages(5)
    joined = fleet.start("worker", spider, "--burst")
    fleet.wait_for_worker(joined)
    status = fleet.status()
    fleet.shoal("pace", fleet.lane, "200/s", fleet.crawl)
    out, err, code = ended(run)
    assert code == 0, err
    assert ended(joined)[2] == 0
    assert len({worker["worker"] for worker in status["workers"]}) == 3
    assert sum(worker["pages_per_second"] for worker in status["workers"]) > 0
    summary = json.loads(out)
    assert (summary["done"], summary["items"], summary["lost"]) == (PAGES, PAGES, 0)
    fleet.check(PAGES)
    assert set(fleet.fetches().values()) == {1}
    assert len(fleet.fetches()) == PAGES


# Five seconds: the processes of a whole fleet have to be alive together to be looked at.
@pytest.mark.full
def test_no_process_of_a_fleet_shows_the_password_of_its_server(fleet: RedisFleet, server: RedisServer) -> None:
    fleet.url = server.url.replace("//", f"//:{SECRET}@")
    server.call("CONFIG", "SET", "requirepass", SECRET)
    run = fleet.start("run", fleet.spider(rate="100/s"), "--workers", "2", hidden=True)
    fleet.wait_for_pages(5)
    root = psutil.Process(run.pid)
    lines = [Path(f"/proc/{process.pid}/cmdline").read_bytes() for process in (root, *root.children(recursive=True))]
    out, err, code = ended(run)
    assert code == 0, err
    assert sum(b"\0worker\0" in line for line in lines) == 2
    assert not any(SECRET.encode() in line for line in lines)
    assert SECRET not in out + err
    fleet.check(PAGES)


# The crawl is slow until a second worker has joined it, done pages and left: so it leaves before the end.
@pytest.mark.full
def test_a_worker_that_is_told_to_stop_loses_nothing_and_leaves_nothing_to_be_done_again(fleet: RedisFleet) -> None:
    spider = fleet.spider(rate="10/s")
    run = fleet.start("run", spider)
    fleet.wait_for_pages(5)
    worker = fleet.start("worker", spider)
    fleet.wait_for_worker(worker)
    worker.send_signal(signal.SIGTERM)
    assert ended(worker)[2] == 0
    assert not fleet.progress().is_finished
    fleet.shoal("pace", fleet.lane, "200/s", fleet.crawl)
    assert ended(run)[2] == 0
    progress = fleet.check(PAGES)
    assert (progress.lost, progress.stale, progress.retried) == (0, 0, 0)
    assert set(fleet.fetches().values()) == {1}


# Nine seconds: three processes wait out a dead server, repair the crawl and finish it.
def test_workers_wait_for_a_killed_server_and_go_on(fleet: RedisFleet, server: RedisServer) -> None:
    errors = fleet.folder / "errors.txt"
    run = fleet.start("run", fleet.spider(rate="100/s"), "--workers", "2", errors=errors)
    fleet.wait_for_pages(60)
    server.kill()
    wait_until(lambda: "cannot reach Redis" in errors.read_text(), otherwise="nobody says that the server is away")
    time.sleep(1.0)  # both workers and the coordinator wait meanwhile, and only one of them says so
    server.start()
    assert ended(run)[2] == 0, errors.read_text()
    assert len(waits_for(errors, "cannot reach Redis")) == 1
    fleet.check(PAGES)


# Seven seconds: the only proof that a full server stops real workers and that they go on when there is room.
@pytest.mark.full
def test_a_server_without_memory_is_waited_for(fleet: RedisFleet, server: RedisServer) -> None:
    errors = fleet.folder / "errors.txt"
    run = fleet.start("run", fleet.spider(rate="100/s"), "--workers", "2", errors=errors)
    fleet.wait_for_pages(60)
    server.call("CONFIG", "SET", "maxmemory", "1mb")
    wait_until(lambda: FULL in errors.read_text(), otherwise="nobody says that the server is full")

    def stands_still() -> bool:
        done = fleet.progress().done
        time.sleep(1.0)  # ten times as long as a page takes
        return fleet.progress().done == done < PAGES

    # A settle that was on its way when the first worker said so may still count.
    wait_until(stands_still, otherwise="pages are done though the server is full")
    assert run.poll() is None
    server.call("CONFIG", "SET", "maxmemory", "0")
    assert ended(run)[2] == 0, errors.read_text()
    assert len(waits_for(errors, FULL)) == 1
    fleet.check(PAGES)


# Thirteen seconds: four commands in processes of their own, each with its effect on two workers.
@pytest.mark.full
def test_pause_resume_pace_and_cancel_reach_every_worker(fleet: RedisFleet) -> None:
    run = fleet.start("run", fleet.spider(rate="15/s"), "--workers", "2")
    fleet.wait_for_pages(10)
    assert "is paused" in fleet.shoal("pause", fleet.crawl)
    paused = fleet.wait_for(lambda progress: progress.leased == 0)
    time.sleep(0.5)  # both workers ask for tasks meanwhile
    assert fleet.progress().done == paused.done
    assert "is running" in fleet.shoal("resume", fleet.crawl)
    fleet.wait_for(lambda progress: progress.done > paused.done)
    assert "at 10/s" in fleet.shoal("pace", fleet.lane, "10/s", fleet.crawl)
    # Tasks that were lent before may start within the horizon of a second.
    since = time.monotonic() + 1.2

    def paced() -> list[Hit]:
        return [hit for hit in fleet.site.hits() if hit.time > since]

    wait_until(lambda: len(paced()) >= 15, otherwise="no pages at the new pace")
    assert busiest_window(paced(), seconds=1.0) <= 12
    assert "is cancelled" in fleet.shoal("cancel", fleet.crawl, "--yes")
    assert ended(run)[2] == 1
    progress = fleet.progress()
    assert progress.state is CrawlState.CANCELLED
    assert progress.left == 0
    assert progress.cancelled > 0
    assert progress.done + progress.cancelled == progress.known
    assert sum(fleet.fetches().values()) == progress.done


@pytest.mark.full
def test_crawls_on_one_server_do_not_see_each_other_and_a_deleted_one_leaves_no_key(
    fleet: RedisFleet, server: RedisServer
) -> None:
    # Slow: it must not be over when the other one is, and `--fresh` deletes only what is unfinished.
    first = fleet.start("run", fleet.spider(rate="10/s"))
    fleet.wait_for_pages(5)
    fleet.shoal("run", fleet.spider(name="Other", pace_scope="crawl"))
    other = fleet.wait_for(lambda progress: progress.is_finished, crawl="other-1")
    assert (other.done, other.duplicates > 0) == (PAGES, True)
    assert fleet.progress().known <= PAGES
    first.send_signal(signal.SIGTERM)
    ended(first)
    server.call("LPUSH", f"shoal:inbox:{fleet.crawl}", "https://example.com/")
    kept = {key for key in keys_of(server) if "other-1" in key}
    assert any(fleet.crawl in key for key in keys_of(server))
    fleet.shoal("run", fleet.spider(), "--fresh")
    keys = keys_of(server)
    assert not [key for key in keys if fleet.crawl in key]
    assert kept <= keys
    fleet.crawl = "graph-2"
    fleet.check(PAGES)
