"""Several coordinators over one Redis frontier, and workers behind their pipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from piped_fleet import SERVES, STANDS_BY, check_pace, ended, fetches, kill

from shoal.processes.pump import DUTY_SECONDS, LOOKS_PER_DUTY
from shoal.testing.servers.rabbitmq_server import RabbitServer
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.waiting import wait_for_line

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
