"""The pipe of a chaos run: a broker of its own, if asked for, and a coordinator; what may be done to either."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

from shoal.pipes import open_pipe
from shoal.pipes.messages import REQUESTS
from shoal.settings.table import FRONTIER_VARIABLE, PIPE_VARIABLE
from shoal.testing.chaos.diary import until
from shoal.testing.chaos.plan import Deed
from shoal.testing.servers.line_relay import LineRelay, line_relay
from shoal.testing.servers.rabbitmq_server import RabbitServer

OWN_RABBITMQ = "amqp"
PREFIX = "chaos"
SERVED = "workers are served at"
AWAY_SECONDS = (0.2, 1.5)

Lever = Callable[[], Awaitable[None]]


class CoordinatorProcess:
    """`shoal serve --pipe` in a process of its own: killed and started again at will."""

    def __init__(self, folder: Path, *, frontier: str, pipe: str, environment: Mapping[str, str]) -> None:
        self._log = folder / "coordinator.log"
        self._environment = {**os.environ, **environment, FRONTIER_VARIABLE: frontier, PIPE_VARIABLE: pipe}
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start it and wait until it serves workers."""
        before = self._times_served()
        self._begin()
        await until(partial(asyncio.to_thread, self._times_served), lambda times: times > before)

    def _begin(self) -> None:
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "shoal", "serve", "--port", "0"]
            self._process = subprocess.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """SIGKILL: calls that it had received are received again by the next one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _times_served(self) -> int:
        return self._log.read_text(errors="replace").count(SERVED) if self._log.exists() else 0


@contextlib.asynccontextmanager
async def own_rabbitmq(
    folder: Path, levers: dict[Deed, Lever], relays: list[LineRelay], *, rng: random.Random
) -> AsyncIterator[str]:
    """A RabbitMQ server behind a relay: gives the URL of the pipe."""
    server = RabbitServer(folder / "rabbitmq")
    await asyncio.to_thread(server.start)
    try:
        # RabbitMQ notes a new queue on its disk only after some seconds.
        pipe = open_pipe(server.at(PREFIX))
        await pipe.open_queue(REQUESTS)
        await pipe.close()
        await asyncio.to_thread(server.wait_for_the_disk, f"{PREFIX}.{REQUESTS}")
        async with line_relay(server.port) as relay:
            relays.append(relay)
            levers[Deed.BROKER] = partial(_restart_broker, server, rng)
            yield server.at(PREFIX, port=relay.url_port)
    finally:
        await asyncio.to_thread(server.remove)


@contextlib.asynccontextmanager
async def coordinator_at(
    pipe: str, folder: Path, *, frontier: str, environment: Mapping[str, str], levers: dict[Deed, Lever]
) -> AsyncIterator[None]:
    """A coordinator at the pipe, meanwhile."""
    coordinator = CoordinatorProcess(folder, frontier=frontier, pipe=pipe, environment=environment)
    await coordinator.start()
    levers[Deed.COORDINATOR] = partial(_restart_coordinator, coordinator)
    try:
        yield
    finally:
        coordinator.kill()


async def _restart_broker(server: RabbitServer, rng: random.Random) -> None:
    server.kill()
    await asyncio.sleep(rng.uniform(*AWAY_SECONDS))
    await asyncio.to_thread(server.start)


async def _restart_coordinator(coordinator: CoordinatorProcess) -> None:
    coordinator.kill()
    await coordinator.start()
