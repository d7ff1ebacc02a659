"""Two kinds of workers behind a pipe, one of which stands still: what waits for it fills no queue and stops nobody."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from piped_fleet import PipedFleet, check_pace, ended, fetches

from shoal.frontier.base import Frontier
from shoal.model import Progress, TaskState
from shoal.run.intakes import intake_of
from shoal.testing.servers.rabbitmq_server import RabbitServer
from shoal.testing.waiting import eventually

pytestmark = pytest.mark.full

PAGES = 260  # of the graph
SLOTS = 4  # of each worker
WORKERS = 2
# What a worker calls for at once: the rules of the host of each slot, and its own calls: for leases, to settle, to
# renew, its heartbeat, the crawl's progress, the session of an exit. Each is at the broker as a call or an answer.
MOST_CALLS = SLOTS + 6
# What a worker holds: the pages in its slots, those in its buffer, and those of the batch that is being written.
# Nothing more is leased while the buffer has two batches.
BATCH = 2
MOST_HELD = SLOTS + 2 * (2 * BATCH - 1 + SLOTS)
RATE = 80


class Way(NamedTuple):
    """A spider with two kinds of work, and the kind whose worker stands still."""

    spider: str
    kind: str
    options: tuple[str, ...]


KINDS = Way(
    """
from shoal import Item, Spider


class Graph(Spider):
    def parse(self, page):
        yield Item(key=page.url, number=page.text("h1"))
        for request in page.follow("a"):
            if int(request.url.rpartition("/")[2]) % 3 == 0:
                request.kind = "browser"
            yield request
""",
    "browser",
    (),
)
STAGES = Way(
    """
from shoal import Item, Spider, handler


class Graph(Spider):
    @handler(kind="parse")
    def parse(self, page):
        yield Item(key=page.url, number=page.text("h1"))
        yield page.follow("a")
""",
    "parse",
    ("--archive", "pages"),
)


class Watch:
    """The crawl as its coordinator's frontier has it, looked at again and again."""

    def __init__(self, fleet: PipedFleet, frontier: Frontier, keys: list[int]) -> None:
        self._crawl = fleet.crawl.crawl
        self._frontier = frontier
        self._keys = keys
        self.most_leased = 0

    async def progress(self) -> Progress:
        progress = await self._frontier.progress(self._crawl)
        self.most_leased = max(self.most_leased, progress.leased)
        return progress

    async def holds(self, worker: str) -> bool:
        """Whether a worker holds a lease."""
        for key in self._keys:
            status = await self._frontier.look_up(self._crawl, key)
            if status.state is TaskState.LEASED and status.worker == worker:
                return True
        return False

    async def stop(self, process: subprocess.Popen[str], worker: str) -> None:
        """SIGSTOP for a worker while it holds leases."""

        async def is_stopped() -> bool:
            if not await self.holds(worker):
                return False
            os.killpg(process.pid, signal.SIGSTOP)
            if await self.holds(worker):
                return True
            os.killpg(process.pid, signal.SIGCONT)
            return False

        await eventually(is_stopped)

    async def stands_still(self, kind: str) -> bool:
        """Whether all that is left waits for workers of this kind, and nothing is lent."""
        progress = await self.progress()
        return progress.leased == 0 < progress.kinds.get(kind, 0) == progress.left


def messages_at(server: RabbitServer, prefix: str) -> int:
    """All messages in the queues with this prefix, those that were received and not confirmed included."""
    queues = [line.split("\t") for line in server.control("list_queues", "name", "messages").splitlines()]
    return sum(int(number) for name, number in queues if name.startswith(f"{prefix}."))


# The leases of the worker that stands still, five seconds, have to run out.
@pytest.mark.parametrize("way", [pytest.param(KINDS, id="kinds"), pytest.param(STAGES, id="stages")])
async def test_a_kind_whose_worker_stands_still_fills_no_queue_and_stops_no_other(
    rabbitmq: RabbitServer, new_fleet: Any, tmp_path: Path, way: Way
) -> None:
    (tmp_path / "graph.py").write_text(way.spider)
    prefix, spider = f"still-{way.kind}", str(tmp_path / "graph.py")
    slots = {"concurrency": SLOTS, "flush_pages": BATCH, "per_host": PAGES}
    fleet = await new_fleet(rabbitmq.at(prefix), spider=spider, rate=f"{RATE}/s", **slots)
    fleet.start_coordinator()
    other = fleet.start_worker("--kinds", "http", "--name", "goes-on", *way.options)
    still = fleet.start_worker("--kinds", way.kind, "--name", "stands-still", *way.options)
    async with fleet.crawl.opened() as (frontier, _):
        rules = intake_of(next(iter(await frontier.crawls()))).rules
        urls = [f"{fleet.crawl.site.url.rpartition('/')[0]}/{number}" for number in range(PAGES)]
        watch = Watch(fleet, frontier, [rules.resolve(url).key for url in urls])
        await watch.stop(still, "stands-still")
        await eventually(lambda: watch.stands_still(way.kind))
        waiting = await asyncio.to_thread(messages_at, rabbitmq, prefix)
        assert waiting <= WORKERS * MOST_CALLS
        assert watch.most_leased <= WORKERS * MOST_HELD
        os.killpg(still.pid, signal.SIGCONT)
    for worker in (other, still):
        await ended(worker)
    await fleet.crawl.check()
    check_fetches(fleet, way)


def check_fetches(fleet: PipedFleet, way: Way) -> None:
    """Every page once, but for those that the worker that stood still had asked for and not settled."""
    again = {path: times for path, times in fetches(fleet).items() if times > 1}
    assert sum(times - 1 for times in again.values()) <= (SLOTS if way is KINDS else 0), again
    assert all(int(path.rpartition("/")[2]) % 3 == 0 for path in again)
    assert len(fetches(fleet)) == PAGES
    check_pace(fleet.crawl.site.hits(), per_second=RATE)
