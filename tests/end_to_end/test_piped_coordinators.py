"""Several coordinators over one Redis frontier, and workers behind their pipes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from piped_fleet import SERVES, STANDS_BY, PipedFleet, check_pace, ended, fetches, kill

from shoal.model import CrawlState, Progress
from shoal.pipes.pump import DUTY_SECONDS, LOOKS_PER_DUTY
from shoal.testing.servers.rabbitmq_server import RabbitServer
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.waiting import eventually, wait_for_line

pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[2] / "docs/how-to/pipes.md"


def test_the_page_on_pipes_says_how_long_a_takeover_takes() -> None:
    longest = DUTY_SECONDS + DUTY_SECONDS / LOOKS_PER_DUTY
    assert 6 <= longest < 7
    assert "takes over within seven seconds" in PAGE.read_text()


# The duty of the coordinator that is killed, five seconds, has to run out. The leases of its worker do not.
async def test_a_coordinator_that_stands_by_goes_on_where_the_first_was_killed(
    rabbitmq: RabbitServer, redis: RedisServer, new_fleet: Any
) -> None:
    fleet = await new_fleet(rabbitmq.at("stand-by"), frontier=redis.url, rate="40/s", lease_seconds=30.0)
    first = fleet.start_coordinator()
    second = fleet.start_coordinator(until=STANDS_BY)
    worker = fleet.start_worker()
    await fleet.crawl.wait_for_pages(60)
    kill(first)
    wait_for_line(second.stderr, SERVES)
    assert "guest:guest" not in await ended(worker)
    await fleet.crawl.check()
    assert set(fetches(fleet).values()) == {1}
    check_pace(fleet.crawl.site.hits(), per_second=40)


# The older worker stands still, without a page in hand, until the newer one has done some: none is left out by chance.
async def test_workers_of_two_releases_work_side_by_side_each_at_a_prefix_of_its_own(
    rabbitmq: RabbitServer, redis: RedisServer, new_fleet: Any
) -> None:
    other = rabbitmq.at("side-by-side-newer")
    fleet = await new_fleet(rabbitmq.at("side-by-side"), frontier=redis.url, rate="40/s", lease_seconds=30.0)
    fleet.start_coordinator()
    older = fleet.start_worker()
    await fleet.crawl.wait_for_pages(20)
    pages = await paused(fleet)
    os.killpg(older.pid, signal.SIGSTOP)
    fleet.start_coordinator(newer=True, pipe=other)
    newer = fleet.start_worker(newer=True, pipe=other)
    await set_state(fleet, CrawlState.RUNNING)
    await fleet.crawl.wait_for_pages(pages + 20)
    os.killpg(older.pid, signal.SIGCONT)
    for worker in (older, newer):
        assert "upgrade shoal" not in await ended(worker)
    await fleet.crawl.check()
    assert set(fetches(fleet).values()) == {1}
    check_pace(fleet.crawl.site.hits(), per_second=40)


async def paused(fleet: PipedFleet) -> int:
    """Pause the crawl; how many pages are done once no worker holds any."""
    await set_state(fleet, CrawlState.PAUSED)
    async with fleet.crawl.opened() as (frontier, _):

        async def still() -> Progress | None:
            progress: Progress = await frontier.progress(fleet.crawl.crawl)
            return None if progress.leased else progress

        progress = await eventually(still)
        assert progress is not None
        return progress.done


async def set_state(fleet: PipedFleet, state: CrawlState) -> None:
    async with fleet.crawl.opened() as (frontier, _):
        await frontier.set_state(fleet.crawl.crawl, state)
