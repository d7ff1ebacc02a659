"""Crawls through real proxies and accounts, against a site that notes who came from where and when."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from shoal import Spider
from shoal.coordinator import Coordinator
from shoal.crawl import Places, begin, opened, run_crawl, settings_of
from shoal.frontier.base import Frontier
from shoal.model import DeadFilter, ExitStatus, Progress
from shoal.store.base import Store, StoredItem
from shoal.testing.loopback import Hit, LoopbackServer, Reply, Request, reply

SECONDS = 40.0
# Slots are lent a little further apart than the rate says; what is left is the way from a start to the site's clock.
JITTER = 0.5

Answer = Callable[[Request], Reply]


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

    async def run(self, *, until: Callable[[Progress], bool] | None = None, **settings: Any) -> Progress:
        """Run to the end, or until something holds of the crawl's counters."""
        always = {"allow_private": True, "obey_robots": False, "horizon_seconds": 0.3, "grace_seconds": 2.0}
        resolved = settings_of(self.spider, {**always, **self.settings, **settings}, folder=self.folder).values
        spider, stop = self.spider(), asyncio.Event()
        async with asyncio.timeout(SECONDS), self.opened() as (frontier, store):
            crawl, _ = await begin(frontier, store, spider, settings=resolved, reference="-")
            self.crawl = crawl.id

            def show(_: Any) -> None:
                """Nobody looks."""

            coordinator = Coordinator(crawl, frontier=frontier, store=store, show=show, say=self.said.append)
            watching = asyncio.create_task(self._watch(frontier, until, stop)) if until else None
            await run_crawl(
                crawl, spider, places=Places(), workers=1, coordinator=coordinator, stop=stop
            )
            if watching is not None:
                await watching
            return await frontier.progress(crawl.id)

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

    async def _watch(self, frontier: Frontier, until: Callable[[Progress], bool], stop: asyncio.Event) -> None:
        while not until(await frontier.progress(self.crawl)):
            await asyncio.sleep(0.02)
        stop.set()


def pages_of(hits: Sequence[Hit]) -> Counter[str]:
    """How often each page was asked for, robots.txt aside."""
    return Counter(hit.path for hit in hits if hit.path != "/robots.txt")


def gaps_by_peer(hits: Sequence[Hit]) -> dict[str, list[float]]:
    """The times between the requests from each address."""
    times: dict[str, list[float]] = defaultdict(list)
    for hit in sorted(hits, key=lambda hit: hit.time):
        times[hit.peer].append(hit.time)
    return {peer: [later - earlier for earlier, later in itertools.pairwise(of)] for peer, of in times.items()}
