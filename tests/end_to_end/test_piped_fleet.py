"""Workers that reach nothing but a broker, their site and the store: whole crawls, and what dies on the way."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shoal.testing.servers.rabbitmq_server import RabbitServer
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.loopback import Hit, busiest_window
from shoal.testing.waiting import wait_for_line, wait_until

SECONDS = 120.0
PAGES = 260  # of the graph
# Read by every Python process that begins with it on its path: what a later release would have.
NEWER = "import shoal.frontier.piped.messages as messages\nmessages.VERSION += 1\n"


@dataclass
class PipedFleet:
    """A crawl whose workers are behind a pipe, and its processes."""

    crawl: Any  # a GraphCrawl
    pipe: str
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *arguments: str, newer: bool = False) -> subprocess.Popen[str]:
        """Start a command; `newer`: of a shoal whose messages have the next version."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        environ["SHOAL_PIPE"] = self.pipe
        if newer:
            folder = self.crawl.db.parent / "newer"
            folder.mkdir(exist_ok=True)
            (folder / "sitecustomize.py").write_text(NEWER)
            environ["PYTHONPATH"] = str(folder)
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal", *arguments], env=environ,
            cwd=self.crawl.db.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def start_coordinator(self, *, newer: bool = False) -> subprocess.Popen[str]:
        process = self.start("serve", "--port", "0", "--frontier", self.crawl.frontier, newer=newer)
        wait_for_line(process.stderr, "workers are served at")
        return process

    def start_worker(self, *, newer: bool = False) -> subprocess.Popen[str]:
        where = ["--crawl", self.crawl.crawl, "--store", self.crawl.store]
        return self.start("worker", self.crawl.spider, "--burst", *where, newer=newer)

    def end(self) -> None:
        for process in self.processes:
            kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL for a command and the processes that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


async def ended(process: subprocess.Popen[str], *, code: int = 0) -> str:
    """What a worker said, once it has ended as it should."""
    async with asyncio.timeout(SECONDS):
        _, err = await asyncio.to_thread(process.communicate)
    assert process.returncode == code, err
    return err


@pytest.fixture
def new_fleet(new_crawl: Any) -> Iterator[Callable[..., Any]]:
    fleets: list[PipedFleet] = []

    async def make(pipe: str, **settings: Any) -> PipedFleet:
        crawl = await new_crawl(pace="fixed", per_host=32, lease_seconds=5.0, grace_seconds=3.0, **settings)
        fleets.append(PipedFleet(crawl, pipe))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.end()


def fetches(fleet: PipedFleet) -> Counter[str]:
    return Counter(hit.path for hit in fleet.crawl.site.hits())


async def test_two_workers_behind_rabbitmq_fetch_every_page_once(rabbitmq: RabbitServer, new_fleet: Any) -> None:
    fleet = await new_fleet(rabbitmq.at("two-workers"), rate="unlimited")
    fleet.start_coordinator()
    workers = [fleet.start_worker(), fleet.start_worker()]
    for worker in workers:
        assert "guest:guest" not in await ended(worker)
    progress = await fleet.crawl.check()
    assert (progress.stale, progress.lost) == (0, 0)
    assert set(fetches(fleet).values()) == {1}


async def test_a_worker_behind_sqs_does_a_whole_crawl(moto: Any, new_fleet: Any) -> None:
    fleet = await new_fleet(moto.queues_url("whole-crawl"), rate="unlimited")
    fleet.start_coordinator()
    await ended(fleet.start_worker())
    await fleet.crawl.check()


async def test_urls_pushed_into_redis_reach_a_worker_behind_the_pipe(
    rabbitmq: RabbitServer, new_fleet: Any, graph: Any, tmp_path: Path
) -> None:
    server = RedisServer(tmp_path / "redis").start()
    try:
        fleet = await new_fleet(rabbitmq.at("inbox"), frontier=server.url, rate="unlimited")
        fleet.start_coordinator()
        server.call("LPUSH", f"shoal:inbox:{fleet.crawl.crawl}", f"{graph.url}?pushed")
        await asyncio.to_thread(wait_until, lambda: not server.call("KEYS", "*inbox*"), otherwise="nobody takes it in")
        await ended(fleet.start_worker())
        assert set(fetches(fleet).values()) == {1} == {fetches(fleet)["/g/0?pushed"]}
        async with fleet.crawl.opened() as (frontier, _):
            progress = await frontier.progress(fleet.crawl.crawl)
        assert (progress.is_finished, progress.done, progress.dead) == (True, PAGES + 1, 0)
    finally:
        fleet.end()
        server.stop()


async def test_a_newer_worker_is_refused_while_the_others_go_on(rabbitmq: RabbitServer, new_fleet: Any) -> None:
    fleet = await new_fleet(rabbitmq.at("newer-worker"), rate="40/s")
    fleet.start_coordinator()
    worker = fleet.start_worker()
    await fleet.crawl.wait_for_pages(10)
    said = await ended(fleet.start_worker(newer=True), code=2)
    assert said.count("upgrade shoal on the machine of the coordinator") == 1
    assert "guest:guest" not in said
    await ended(worker)
    progress = await fleet.crawl.check()
    assert (progress.stale, progress.lost) == (0, 0)


# The leases of the worker that is refused, five seconds each, have to run out.
async def test_workers_from_before_an_upgrade_are_refused_and_lose_nothing(
    rabbitmq: RabbitServer, new_fleet: Any
) -> None:
    fleet = await new_fleet(rabbitmq.at("upgraded"), rate="40/s")
    coordinator = fleet.start_coordinator()
    older = fleet.start_worker()
    await fleet.crawl.wait_for_pages(30)
    kill(coordinator)
    fleet.start_coordinator(newer=True)
    assert "upgrade shoal on the machine of the worker" in await ended(older, code=2)
    await ended(fleet.start_worker(newer=True))
    await fleet.crawl.check()


# A server of its own, which is killed; leases of five seconds have to run out.
async def test_nothing_is_lost_when_worker_coordinator_and_broker_are_killed_in_turn(
    tmp_path: Path, new_fleet: Any
) -> None:
    server = RabbitServer(tmp_path / "rabbitmq").start()
    try:
        fleet = await new_fleet(server.at("killed"), rate="40/s")
        coordinator = fleet.start_coordinator()
        await asyncio.to_thread(server.wait_for_the_disk, "killed.requests")
        doomed, _ = fleet.start_worker(), fleet.start_worker()
        await fleet.crawl.wait_for_pages(30)
        kill(doomed)
        await fleet.crawl.wait_for_pages(60)
        kill(coordinator)
        fleet.start_coordinator()
        await fleet.crawl.wait_for_pages(90)
        await asyncio.to_thread(server.restart)
        await fleet.crawl.wait_for_pages(120)
        last = fleet.start_worker()
        await ended(last)
        await fleet.crawl.check()
        check_pace(fleet.crawl.site.hits(), per_second=40)
    finally:
        fleet.end()
        server.remove()


def check_pace(hits: list[Hit], *, per_second: int) -> None:
    """No second of the site's clock has more requests than the pace allows, but for what the way to it takes."""
    assert busiest_window(hits) <= per_second * 1.15 + 1


async def test_a_worker_says_that_it_waits_for_a_coordinator(rabbitmq: RabbitServer, new_fleet: Any) -> None:
    fleet = await new_fleet(rabbitmq.at("no-coordinator"), rate="unlimited")
    worker = fleet.start_worker()
    wait_for_line(worker.stderr, "no coordinator answers at amqp://guest:***@")
    fleet.start_coordinator()
    await ended(worker)
    await fleet.crawl.check()
