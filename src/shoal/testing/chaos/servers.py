"""The servers started for a chaos run, and the deeds that can be done to them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.crawl.opening import frontier_at, store_at
from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.pipes import open_pipe
from shoal.pipes.messages import REQUESTS
from shoal.settings.table import FRONTIER_VARIABLE, PIPE_VARIABLE
from shoal.store.base import Store
from shoal.testing.chaos.log import until
from shoal.testing.chaos.plan import CHOICE, STALL_SECONDS, Deed
from shoal.testing.servers import clocks
from shoal.testing.servers.clocks import SteppedClock
from shoal.testing.servers.line_relay import LineRelay, line_relay
from shoal.testing.servers.rabbitmq_server import RabbitServer

if TYPE_CHECKING:
    from shoal.testing.servers.postgres_server import PostgresServer
    from shoal.testing.servers.redis_server import RedisServer


OWN_REDIS, OWN_POSTGRES = "redis", "postgres"
AWAY_SECONDS = (0.2, 1.5)
STEP_SECONDS = 3600.0

Act = Callable[[], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class ChaosServers:
    """The places of a run, and by deed what can be done to their servers, or why it cannot be done here.

    `clock` is the time of day of the run's processes, if not the real one; they are started with `environment`."""

    frontier: str
    store: str
    pipe: str = ""
    clock: Callable[[], float] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    acts: Mapping[Deed, Act] = field(default_factory=dict)
    missing: Mapping[Deed, str] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Frontier, Store]]:
        """The frontier, by the clock of the run's processes, and the store."""
        async with contextlib.AsyncExitStack() as stack:
            frontier: Frontier
            if self.clock is None:
                frontier = await stack.enter_async_context(frontier_at(self.frontier))
            else:
                frontier = await SqliteFrontier.open(self.frontier, clock=self.clock)
                stack.push_async_callback(frontier.close)
            yield frontier, await stack.enter_async_context(store_at(self.store))


@contextlib.asynccontextmanager
async def chaos_servers(
    folder: Path,
    *,
    frontier: str | None,
    store: str | None,
    pipe: str | None = None,
    seed: int,
    deeds: Collection[Deed] = CHOICE,
) -> AsyncIterator[ChaosServers]:
    """The places with these URLs: `redis`, `postgres` and `amqp` stand for servers of the run's own. Servers and files
    with a URL are used, but no deed is done to them."""
    rng = random.Random(f"{seed}/servers")
    acts: dict[Deed, Act] = {}
    relays: list[LineRelay] = []
    # A file has no clock: the clock of the processes is stepped.
    has_clock = Deed.CLOCK in deeds and frontier is None and clocks.is_installed()
    clock = SteppedClock(folder / "clock") if has_clock else None
    async with contextlib.AsyncExitStack() as stack:
        file = str(folder / "shoal.db")
        if frontier is None:
            acts[Deed.STALL] = partial(asyncio.to_thread, _hold_locked, file)
        elif frontier == OWN_REDIS:
            frontier = await stack.enter_async_context(_own_redis(folder, acts, relays, rng=rng))
        if clock is not None:
            acts[Deed.CLOCK] = _steps(clock.step, rng)
        if store == OWN_POSTGRES:
            store = await stack.enter_async_context(_own_postgres(acts, relays, rng=rng))
        environment = clock.environment if clock else {}
        if pipe:
            if pipe == OWN_RABBITMQ:
                pipe = await stack.enter_async_context(own_rabbitmq(folder, acts, relays, rng=rng))
            behind = coordinator_at(pipe, folder, frontier=frontier or file, environment=environment, acts=acts)
            await stack.enter_async_context(behind)
        if relays:
            acts[Deed.RESET] = partial(_reset, relays)
        yield ChaosServers(
            frontier=frontier or file,
            store=store or file,
            clock=clock.time if clock else None,
            environment=environment,
            pipe=pipe or "",
            acts=acts,
            missing={} if clocks.is_installed() else {Deed.CLOCK: "clock: the library libfaketime is not installed"},
        )


@contextlib.asynccontextmanager
async def _own_redis(
    folder: Path, acts: dict[Deed, Act], relays: list[LineRelay], *, rng: random.Random
) -> AsyncIterator[str]:
    """A redis-server behind a relay; yields its URL."""
    if shutil.which("redis-server") is None:
        raise UsageError("redis-server is not installed: install it, or name a server with --frontier redis://…")
    from shoal.testing.servers.redis_server import RedisServer

    has_clock = clocks.is_installed()
    server = RedisServer(folder / "redis", own_clock=has_clock)
    await asyncio.to_thread(server.start)
    try:
        async with line_relay(server.port) as relay:
            relays.append(relay)
            acts[Deed.RESTART] = partial(_restart_redis, server, rng)
            acts[Deed.STALL] = partial(_stall_redis, server)
            if has_clock:
                acts[Deed.CLOCK] = _steps(server.step_clock, rng)
            yield server.url.replace(f":{server.port}/", f":{relay.url_port}/")
    finally:
        server.kill()


@contextlib.asynccontextmanager
async def _own_postgres(acts: dict[Deed, Act], relays: list[LineRelay], *, rng: random.Random) -> AsyncIterator[str]:
    """A PostgreSQL server behind a relay; yields the URL of its database."""
    from shoal.testing.servers.postgres_server import PostgresServer, is_installed

    if not is_installed():
        raise UsageError("PostgreSQL is not installed: install it, or name a server with --store postgresql://…")
    server = await asyncio.to_thread(PostgresServer)
    try:
        await asyncio.to_thread(server.start)
        async with line_relay(server.port) as relay:
            relays.append(relay)
            acts[Deed.BACKEND] = partial(_end_backend, server, rng)
            acts[Deed.STORE_RESTART] = partial(_restart_postgres, server, rng)
            yield server.url().replace(f":{server.port}/", f":{relay.url_port}/")
    finally:
        await asyncio.to_thread(server.remove)


async def _restart_redis(server: RedisServer, rng: random.Random) -> None:
    """Kill it, truncate its append-only file as a power cut does, start it again."""
    server.kill()
    server.lose_tail(rng)
    await asyncio.sleep(rng.uniform(*AWAY_SECONDS))
    await asyncio.to_thread(server.start)


async def _stall_redis(server: RedisServer) -> None:
    server.pause()
    try:
        await asyncio.sleep(STALL_SECONDS)
    finally:
        server.resume()


def _hold_locked(path: str) -> None:
    """Lock the file: no other process can write."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=STALL_SECONDS)) as db:
        db.execute("BEGIN EXCLUSIVE")
        time.sleep(STALL_SECONDS)
        db.execute("ROLLBACK")


def _steps(step: Callable[[float], None], rng: random.Random) -> Act:
    """Steps a clock by an hour, forth and back."""
    sizes = itertools.cycle(rng.sample([STEP_SECONDS, -STEP_SECONDS], k=2))

    async def step_once() -> None:
        step(next(sizes))

    return step_once


async def _reset(relays: list[LineRelay]) -> None:
    for relay in relays:
        relay.reset()


async def _end_backend(server: PostgresServer, rng: random.Random) -> None:
    """End the process of one session: with SIGTERM, or with SIGKILL, after which the server ends all sessions."""
    sign = rng.choice((signal.SIGTERM, signal.SIGKILL))
    # After a reset there is no session until the next write, and a recovering server accepts none.
    await until(partial(asyncio.to_thread, _end_one_of, server, sign, rng), bool)


def _end_one_of(server: PostgresServer, sign: signal.Signals, rng: random.Random) -> bool:
    query = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    with contextlib.suppress(subprocess.CalledProcessError, ProcessLookupError):
        if pids := server.call(query).split():
            os.kill(int(rng.choice(pids)), sign)
            return True
    return False


async def _restart_postgres(server: PostgresServer, rng: random.Random) -> None:
    """Kill it and start it again: it recovers from its log."""
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(rng.uniform(*AWAY_SECONDS))
    await asyncio.to_thread(server.start)


OWN_RABBITMQ = "amqp"
PREFIX = "chaos"
SERVED = "workers are served at"


class CoordinatorProcess:
    """`shoal serve --pipe` as a process that can be killed and started again."""

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
        """SIGKILL: the next coordinator receives its unfinished calls again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _times_served(self) -> int:
        return self._log.read_text(errors="replace").count(SERVED) if self._log.exists() else 0


@contextlib.asynccontextmanager
async def own_rabbitmq(
    folder: Path, acts: dict[Deed, Act], relays: list[LineRelay], *, rng: random.Random
) -> AsyncIterator[str]:
    """A RabbitMQ server behind a relay; yields the URL of the pipe."""
    server = RabbitServer(folder / "rabbitmq")
    await asyncio.to_thread(server.start)
    try:
        # RabbitMQ writes a new queue to its disk only after some seconds.
        pipe = open_pipe(server.at(PREFIX))
        await pipe.open_queue(REQUESTS)
        await pipe.close()
        await asyncio.to_thread(server.wait_for_the_disk, f"{PREFIX}.{REQUESTS}")
        async with line_relay(server.port) as relay:
            relays.append(relay)
            acts[Deed.BROKER] = partial(_restart_broker, server, rng)
            yield server.at(PREFIX, port=relay.url_port)
    finally:
        await asyncio.to_thread(server.remove)


@contextlib.asynccontextmanager
async def coordinator_at(
    pipe: str, folder: Path, *, frontier: str, environment: Mapping[str, str], acts: dict[Deed, Act]
) -> AsyncIterator[None]:
    """Run a coordinator at the pipe."""
    coordinator = CoordinatorProcess(folder, frontier=frontier, pipe=pipe, environment=environment)
    await coordinator.start()
    acts[Deed.COORDINATOR] = partial(_restart_coordinator, coordinator)
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
