"""Whole crawls through lines that break, and with servers that come later than the processes that need them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_fleet import RedisFleet, ended, fleet_on_a_graph

from shoal.testing.servers.line_relay import line_relay
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.waiting import wait_for_line

PAGES = 120
RESETS = 7


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that is not started yet."""
    server = RedisServer(tmp_path / "redis")
    yield server
    server.kill()


@pytest.fixture
def fleet(tmp_path: Path, server: RedisServer) -> Iterator[RedisFleet]:
    with fleet_on_a_graph(tmp_path, server, pages=PAGES) as fleet:
        yield fleet


def test_no_reset_line_ends_a_coordinator_or_a_worker(fleet: RedisFleet, server: RedisServer) -> None:
    server.start()

    async def crawl() -> tuple[str, str, int]:
        async with line_relay(server.port) as relay:
            url = f"redis://127.0.0.1:{relay.url_port}/0"
            running = fleet.start("run", fleet.spider(rate="40/s"), "--workers", "2", frontier=url)
            for done in range(RESETS):
                await asyncio.to_thread(fleet.wait_for_pages, 2 + done * 12)
                relay.reset()
            return await asyncio.to_thread(ended, running)

    out, err, code = asyncio.run(crawl())
    assert (code, "Traceback" in err, "ended with" in err) == (0, False, False), err
    fleet.check(PAGES)
    assert "finished" in out + err


@pytest.mark.full
def test_a_run_and_a_worker_wait_for_a_server_that_is_not_there_yet(fleet: RedisFleet, server: RedisServer) -> None:
    run = fleet.start("run", fleet.spider())
    wait_for_line(run.stderr, f"cannot reach Redis at redis://127.0.0.1:{server.port}/0")
    worker = fleet.start("worker", "graph.py", "--burst", "--crawl", "graph-1")
    wait_for_line(worker.stderr, "; waiting")
    status = fleet.start("status")
    _, err, code = ended(status)
    assert (code, err.count("\n"), "waiting" in err) == (3, 1, False)
    server.start()
    _, err, code = ended(run)
    assert code == 0, err
    fleet.check(PAGES)
    worker.kill()


@pytest.mark.full
@pytest.mark.parametrize("command", ["run", "worker"])
def test_what_waits_for_a_server_ends_at_once_when_it_is_told_to(fleet: RedisFleet, command: str) -> None:
    process = fleet.start(command, fleet.spider())
    wait_for_line(process.stderr, "; waiting")
    process.send_signal(signal.SIGINT)
    _, err, code = ended(process)
    assert (code, "Traceback" in err) == (130, False)


@pytest.mark.full
def test_a_server_whose_name_is_not_known_is_waited_for(fleet: RedisFleet) -> None:
    process = fleet.start("run", fleet.spider(), frontier="redis://no-such-host.invalid:6379/0")
    wait_for_line(process.stderr, "cannot reach Redis at redis://no-such-host.invalid:6379/0")
    assert _still_runs(process)
    process.kill()


def _still_runs(process: subprocess.Popen[str]) -> bool:
    return process.poll() is None
