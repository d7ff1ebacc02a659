"""Crawls through real proxies and accounts, against a site that notes who came from where and when."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal import Spider
from shoal.crawl.beginning import begin
from shoal.crawl.opening import Places, opened
from shoal.frontier.base import Frontier
from shoal.insight.stats import Snapshot
from shoal.model import Crawl, DeadFilter, ExitStatus, Progress
from shoal.run.building import worker_for
from shoal.run.coordinator import Coordinator
from shoal.run.intakes import intake_of, settings_of
from shoal.store.base import Store, StoredItem
from shoal.testing.sites.loopback import Hit, LoopbackServer, Reply, Request, busiest_window, reply
from shoal.testing.waiting import eventually

SECONDS = 120.0
# Of the frontiers, for tests of the rules that the contract proves for each of them.
BACKENDS = ["sqlite", pytest.param("redis", marks=pytest.mark.full)]

Answer = Callable[[Request], Reply]
Meanwhile = Callable[[Frontier], Awaitable[None]]


def graph(pages: int) -> Answer:
    """A site of numbered pages; its first page links to all of them."""

    def answer(request: Request) -> Reply:
        if request.path == "/robots.txt":
            return reply("User-agent: *\nDisallow: /private", kind="text/plain")
        links = "".join(f'<a href="/{number}">x</a>' for number in range(1, pages))
        return reply(f"<h1>{request.path}</h1>" + (links if request.path == "/0" else ""))

    return answer


@asynccontextmanager
async def site(answer: Answer, **options: Any) -> AsyncIterator[LoopbackServer]:
    """A site on loopback."""
    server = LoopbackServer(answer=answer, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@dataclass
class ExitCrawl:
    """One spider's crawl in this process, its pools as they stand in shoal.toml."""

    folder: Path
    spider: type[Spider]
    frontier_url: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    crawl: str = ""

    def pool(self, name: str, urls: Sequence[str], *, group: str = "proxies", **options: Any) -> None:
        """Write a pool into shoal.toml."""
        lines = [f"[{group}.{name}]"]
        lines += [f"urls = {msgspec.json.encode(list(urls)).decode()}"] if urls else []
        lines += [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in options.items()]
        with (self.folder / "shoal.toml").open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    def accounts(self, name: str, logins: dict[str, str], **options: Any) -> None:
        """Write a pool of accounts, with their passwords in a file of their own."""
        (self.folder / "logins.txt").write_text("".join(f"{who}:{word}\n" for who, word in logins.items()))
        self.pool(name, [], group="accounts", file="logins.txt", **options)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[Frontier, Store]]:
        db = str(self.folder / "shoal.db")
        async with opened(Places(frontier=self.frontier_url or db, store=db)) as parts:
            yield parts

    async def begin(self, **settings: Any) -> Crawl:
        """Begin or resume the crawl, and feed it."""
        always = {"allow_private": True, "obey_robots": False, "horizon_seconds": 0.3, "grace_seconds": 10.0}
        resolved = settings_of(self.spider, {**always, **self.settings, **settings}, folder=self.folder).values
        async with self.opened() as (frontier, store):
            crawl, _ = await begin(frontier, self.spider(), settings=resolved, reference="-")
            self.crawl = crawl.id
            await self._coordinator(crawl, frontier, store).feed(self.spider(), intake=intake_of(crawl))
            return crawl

    async def run(self, *, until: Callable[[Progress], bool] | None = None, **settings: Any) -> Progress:
        """Run to the end, or until something holds of the crawl's counters."""
        await self.begin(**settings)
        return await self.work(until=until)

    async def work(self, *, until: Callable[[Progress], bool] | None = None) -> Progress:
        """A worker does the pages that are left: to the end, or until something holds."""
        stop = asyncio.Event()
        async with asyncio.timeout(SECONDS), self.opened() as (frontier, store):
            (crawl,) = [one for one in await frontier.crawls() if one.id == self.crawl]
            watching = asyncio.create_task(self._watch(frontier, until, stop)) if until else None
            async with worker_for(crawl, self.spider(), frontier=frontier, store=store, say=self.said.append) as worker:
                await worker.run(stop)
            if watching is not None:
                await watching
            return await frontier.progress(crawl.id)

    async def watched(self, is_so: Callable[[Snapshot], bool], *, meanwhile: Meanwhile | None = None) -> Snapshot:
        """The first snapshot of which this holds, while a worker works. `meanwhile` is done to the frontier first."""
        stop = asyncio.Event()
        async with asyncio.timeout(SECONDS), self.opened() as (frontier, store):
            (crawl,) = [one for one in await frontier.crawls() if one.id == self.crawl]
            coordinator = self._coordinator(crawl, frontier, store)
            async with worker_for(crawl, self.spider(), frontier=frontier, store=store, say=self.said.append) as worker:
                working = asyncio.create_task(worker.run(stop))
                try:
                    if meanwhile is not None:
                        await meanwhile(frontier)

                    async def found() -> Snapshot | None:
                        snapshot = await coordinator.look()
                        return snapshot if is_so(snapshot) else None

                    return await eventually(found, seconds=SECONDS, pause=0.05)
                finally:
                    stop.set()
                    await working

    async def items(self) -> list[StoredItem]:
        async with self.opened() as (_, store):
            return [item async for item in store.items()]

    async def exits(self) -> dict[str, ExitStatus]:
        """Every exit by its name."""
        async with self.opened() as (frontier, _):
            return {status.exit: status for status in await frontier.exits(self.crawl)}

    async def dead(self) -> list[Any]:
        async with self.opened() as (frontier, _):
            return await frontier.dead(self.crawl, DeadFilter())

    def _coordinator(self, crawl: Crawl, frontier: Frontier, store: Store) -> Coordinator:
        def show(_: Any) -> None:
            """Nobody looks."""

        return Coordinator(crawl, frontier=frontier, show=show, say=self.said.append)

    async def _watch(self, frontier: Frontier, until: Callable[[Progress], bool], stop: asyncio.Event) -> None:
        async def is_so() -> bool:
            return until(await frontier.progress(self.crawl))

        await eventually(is_so, seconds=SECONDS)
        stop.set()


def pages_of(hits: Sequence[Hit]) -> Counter[str]:
    """How often each page was asked for, robots.txt aside."""
    return Counter(hit.path for hit in hits if hit.path != "/robots.txt")


def busiest_by_peer(hits: Sequence[Hit]) -> dict[str, int]:
    """The most requests that came from each address within any second."""
    peers = {hit.peer for hit in hits}
    return {peer: busiest_window(hit for hit in hits if hit.peer == peer) for peer in peers}


@asynccontextmanager
async def lying_server(address: str, answer: bytes) -> AsyncIterator[str]:
    """The URL of a proxy that says the same to everybody and then closes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, address, 0)
    try:
        yield f"http://{address}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def silent_server(address: str, *, hangs: bool) -> AsyncIterator[str]:
    """The URL of a proxy that takes connections and never answers, or closes them."""
    writers: list[asyncio.StreamWriter] = []

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if not hangs:
            writer.close()

    server = await asyncio.start_server(talk, address, 0)
    try:
        yield f"http://{address}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await server.wait_closed()
