"""Servers that several tests share, and how Hypothesis makes its examples."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from forked_shoal import end_server
from shared_servers import end_servers, shared
from shoal.testing.servers.object_server import MotoServer
from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.servers.rabbitmq_server import RabbitServer
from shoal.testing.servers.redis_server import RedisServer

# A busy machine makes every example slow, and that is no failure.
# CI takes the same examples each time, so that a change is judged by the change; elsewhere they are new in each run.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("any machine")

# A shell that runs the tests in its background has every process below it ignore Ctrl-C, which some tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionfinish() -> None:
    end_server()
    end_servers()


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder that all test processes of this run have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if hasattr(request.config, "workerinput") else own


@pytest.fixture(scope="session")
def postgres(run_folder: Path) -> PostgresServer:
    """The PostgreSQL server of the run; each test has a database of its own. A test that stops its server starts one
    of its own."""
    return shared(run_folder, "postgres", lambda: PostgresServer().start(), PostgresServer.remove)


@pytest.fixture(scope="session")
def redis_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One per test process: tests count connections, look at all keys and empty all of it."""
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


@pytest.fixture
def redis(redis_of_all: RedisServer) -> RedisServer:
    """An empty Redis server that other tests use before and after this one."""
    redis_of_all.call("FLUSHALL")
    return redis_of_all


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis server that a test may stop, restart and configure."""
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def object_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    """An object storage that speaks S3; each test makes a bucket of its own."""
    server = MotoServer(tmp_path_factory.mktemp("moto")).start()
    yield server
    server.kill()


@pytest.fixture
def moto(object_server: MotoServer, monkeypatch: pytest.MonkeyPatch) -> MotoServer:
    """The object storage, with its credentials in the environment."""
    for name, value in MotoServer.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return object_server


@pytest.fixture(scope="session")
def rabbitmq(run_folder: Path) -> RabbitServer:
    """The RabbitMQ server of the run; each test has a prefix of its own. A test that stops its server starts one of its
    own."""
    return shared(run_folder, "rabbitmq", lambda: RabbitServer(run_folder / "rabbit").start(), RabbitServer.remove)
