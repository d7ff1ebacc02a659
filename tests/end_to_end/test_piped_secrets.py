"""Secrets of a broker: in no message, log line, store or frontier of those that work behind it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from piped_fleet import SERVES, PipedFleet, ended

from shoal.pipes import open_pipe
from shoal.pipes.messages import REQUESTS
from shoal.testing.servers.object_server import MotoServer
from shoal.testing.servers.rabbitmq_server import RabbitServer
from shoal.testing.waiting import wait_until

pytestmark = pytest.mark.full

PAGES = 40
USER, PASSWORD = "keeper", "planted-password-e8f4"
SECRET_KEY, SESSION_TOKEN = "planted-secret-key-1f3a", "planted-session-token-77b0"
SECRETS = (PASSWORD, SECRET_KEY, SESSION_TOKEN)
ALL_OF_IT = ("--log-format", "json", "--log-level", "debug")


@pytest.fixture(params=["rabbitmq", "moto"])
def guarded_pipe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a pipe whose broker asks who we are."""
    server = request.getfixturevalue(request.param)
    if isinstance(server, MotoServer):
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        monkeypatch.setenv("AWS_SESSION_TOKEN", SESSION_TOKEN)
        return server.queues_url("secrets")
    assert isinstance(server, RabbitServer)
    server.control("add_user", USER, f"{PASSWORD}/?#")
    server.control("set_permissions", USER, ".*", ".*", ".*")
    return server.at("secrets").replace("guest:guest", f"{USER}:{PASSWORD}%2F%3F%23")


@pytest.mark.parametrize("graph", [PAGES], indirect=True)
async def test_secrets_of_a_broker_are_said_and_stored_nowhere(
    guarded_pipe: str, new_fleet: Any, tmp_path: Path
) -> None:
    fleet: PipedFleet = await new_fleet(guarded_pipe, rate="unlimited")
    coordinator, worker = tmp_path / "coordinator.log", tmp_path / "worker.log"
    fleet.start("serve", "--port", "0", "--frontier", fleet.crawl.frontier, *ALL_OF_IT, log=coordinator)
    await asyncio.to_thread(wait_until, lambda: SERVES in coordinator.read_text(), otherwise="nobody serves")
    pipe = open_pipe(guarded_pipe)
    await pipe.send(REQUESTS, [b"nonsense"], seconds=60)
    await pipe.close()
    await ended(fleet.start_worker(*ALL_OF_IT, log=worker))
    await asyncio.to_thread(wait_until, lambda: "kept in the queue" in coordinator.read_text(), otherwise="not kept")
    await fleet.crawl.check(PAGES)
    status = fleet.start("status", fleet.crawl.crawl, "--frontier", fleet.crawl.frontier, log=tmp_path / "status.log")
    await ended(status)
    fleet.end()
    check_files(tmp_path)


def check_files(folder: Path) -> None:
    """What processes wrote: all details, and no secret."""
    written = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert "shoal.db" in written
    assert b"could not be read: kept in its queue" in written["status.log"]
    assert b'"level":"info"' in written["coordinator.log"]
    assert b'"level":"debug"' in written["worker.log"]
    assert {(name, secret) for name, data in written.items() for secret in SECRETS if secret.encode() in data} == set()
