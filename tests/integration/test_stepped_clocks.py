"""A frontier whose server's clock is stepped, or whose server is away, in the middle of a crawl."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.testing.servers.redis_server import RedisServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis", own_clock=True).start()
    yield server
    server.kill()


def test_the_clock_of_a_server_is_stepped_while_it_runs_and_stays_so_after_a_restart(server: RedisServer) -> None:
    def ahead() -> float:
        return float(server.call("TIME")[0]) - time.time()

    assert abs(ahead()) < 60
    server.step_clock(3600)
    assert abs(ahead() - 3600) < 60
    server.step_clock(-7200)
    assert abs(ahead() + 3600) < 60
    server.restart()
    assert abs(ahead() + 3600) < 60
