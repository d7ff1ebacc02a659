"""Coordinators and workers at one broker, and the messages between them."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.frontier.base import Frontier
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.model import Crawl
from shoal.pipes import open_pipe
from shoal.pipes.base import UNREADABLE, Pipe
from shoal.pipes.frontier import PipedFrontier
from shoal.pipes.messages import REQUESTS, VERSION, Call, Envelope, encoded, packed
from shoal.pipes.pump import Pump
from shoal.testing.contract.frontier.case import CRAWL, make_task
from shoal.testing.servers.object_server import MotoServer
from shoal.testing.servers.rabbitmq_server import RabbitServer

MINE = "answers-mine"


@dataclass
class Ground:
    """A broker, and coordinators over files of their own or the same."""

    server: RabbitServer | MotoServer
    folder: Path
    prefix: str
    said: list[str] = field(default_factory=list)
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    @property
    def url(self) -> str:
        return self.url_at(None)

    def url_at(self, port: int | None) -> str:
        """The pipe's URL, also at the port of a relay."""
        at = self.server.at if isinstance(self.server, RabbitServer) else self.server.queues_url
        return at(self.prefix, port=port)

    async def frontier(self, name: str = "shoal.db") -> SqliteFrontier:
        frontier = await SqliteFrontier.open(self.folder / name)
        self.stack.push_async_callback(frontier.close)
        return frontier

    async def pump(self, frontier: Any, *, duty_seconds: float = 2.0) -> Callable[[], Any]:
        """Let a coordinator run; gives what ends it."""
        pump = Pump(frontier, open_pipe(self.url), say=self.said.append, duty_seconds=duty_seconds)
        running = asyncio.create_task(pump.run())

        async def end() -> None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        self.stack.push_async_callback(end)
        return end

    async def worker(self, *, port: int | None = None) -> PipedFrontier:
        frontier = await PipedFrontier.open(open_pipe(self.url_at(port)))
        self.stack.push_async_callback(frontier.close)
        return frontier

    async def pipe(self) -> Pipe:
        """The queues themselves, for messages that no worker sends; with a queue for answers."""
        pipe = open_pipe(self.url)
        for queue, passing in ((REQUESTS, False), (MINE, True)):
            await pipe.open_queue(queue, passing=passing)
        self.stack.push_async_callback(pipe.close)
        return pipe


@contextlib.asynccontextmanager
async def ground_at(server: RabbitServer | MotoServer, folder: Path) -> AsyncIterator[Ground]:
    ground = Ground(server, folder, f"t{uuid.uuid4().hex[:12]}")
    yield ground
    await ground.stack.aclose()
    pipe = open_pipe(ground.url)
    for queue in (REQUESTS, UNREADABLE, MINE):
        await pipe.remove_queue(queue)
    await pipe.close()


async def with_tasks(frontier: Frontier, number: int = 10) -> Frontier:
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=100))
    await frontier.put(CRAWL, [make_task(key) for key in range(number)])
    return frontier


def request(number: int, verb: str, arguments: object = None, **more: Any) -> list[bytes]:
    return packed(Envelope(VERSION, "request", MINE, number, **more), Call(verb, encoded(arguments)))


LEASE = {"crawls": [CRAWL], "limit": 3, "worker": "w1", "seconds": 60.0, "horizon": 0.0}
