"""A crawl of a numbered graph over a real Redis server by real `shoal` processes, and the proof at its end."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from called_here import call_shoal
from shoal.crawl.opening import Places, opened
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.model import Heartbeat, Progress
from shoal.testing.chaos.check import check_crawl
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import SiteProcess, site_process
from shoal.testing.waiting import eventually

S = TypeVar("S")
T = TypeVar("T")

SECONDS = 120.0
SPIDER = """
from shoal import Item, Spider

class {name}(Spider):
    start = ["{url}"]
    rate = "{rate}"
    settings = {settings!r}

    def parse(self, page):
        yield Item(key=page.url, number=page.text("h1"))
        yield page.follow("a")
"""


@dataclass
class RedisFleet:
    """One spider, its site, its Redis server, and the processes that work on them."""

    folder: Path
    site: SiteProcess
    url: str
    crawl: str = "graph-1"
    store: str = ""  # if it is not the file that commands take by themselves
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def spider(self, *, name: str = "Graph", rate: str = "unlimited", **settings: Any) -> str:
        """Write the spider's file."""
        always = {"allow_private": True, "obey_robots": False, "pace": "fixed", "per_host": 64, "grace_seconds": 3.0}
        text = SPIDER.format(name=name, url=self.site.url, rate=rate, settings={**always, **settings})
        (self.folder / f"{name.lower()}.py").write_text(text)
        return f"{name.lower()}.py"

    def start(
        self,
        *arguments: str,
        prefix: tuple[str, ...] = (),
        frontier: str | None = None,
        hidden: bool = False,
        errors: Path | None = None,
    ) -> subprocess.Popen[str]:
        """A `shoal` command on this fleet's Redis. The prefix is a command that runs it elsewhere. Hidden: the URL of
        the server is in its environment, not in its arguments. Errors: a file for its standard error."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        command = [*prefix, sys.executable, "-m", "shoal", *arguments]
        if hidden:
            environ["SHOAL_FRONTIER"] = self.url
        else:
            command += ["--frontier", frontier or self.url]
        command += ["--store", self.store] if self.store else []
        with errors.open("w") if errors else nullcontext(subprocess.PIPE) as stderr:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environ, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        self.processes.append(process)
        return process

    @property
    def lane(self) -> str:
        """The site's lane, as commands name it."""
        return self.site.url.split("/")[2]

    def shoal(self, *arguments: str) -> str:
        """A command that ends well; what it prints. A run has a process of its own, others are called in this one."""
        if arguments[0] != "run":
            return call_shoal(self.folder, *arguments, "--frontier", self.url).stdout
        out, err, code = ended(self.start(*arguments))
        assert code == 0, f"{arguments}: {code}\n{out}\n{err}"
        return out

    def status(self, *more: str) -> Any:
        return json.loads(self.shoal("status", self.crawl, "--json", *more))

    def wait_for(self, is_so: Callable[[Progress], bool], *, crawl: str | None = None) -> Progress:
        """The crawl's counters, once this holds of them."""
        wanted = crawl or self.crawl

        async def progress_of(frontier: Frontier) -> Progress | None:
            known = {one.id for one in await frontier.crawls()}
            return await frontier.progress(wanted) if wanted in known else None

        return asyncio.run(self._read(progress_of, lambda seen: seen if seen and is_so(seen) else None))

    def wait_for_pages(self, pages: int) -> Progress:
        return self.wait_for(lambda progress: progress.done >= pages)

    def wait_for_worker(self, process: subprocess.Popen[str]) -> Heartbeat:
        """The last beat of a worker, once it has done a page."""

        def of_process(beats: list[Heartbeat]) -> Heartbeat | None:
            return next((beat for beat in beats if beat.pid == process.pid and beat.pages), None)

        # Also if it has left already, on a busy machine.
        return asyncio.run(self._read(lambda frontier: frontier.workers_of(self.crawl), of_process))

    def wait_for_workers(self, number: int) -> None:
        """Until that many workers have given a heartbeat."""
        asyncio.run(self._read(lambda frontier: frontier.workers(), lambda beats: len(beats) >= number or None))

    def busiest_worker(self) -> Heartbeat:
        """The worker that holds most pages, once one holds any."""

        def busiest(beats: list[Heartbeat]) -> Heartbeat | None:
            return max((beat for beat in beats if beat.busy), key=lambda beat: beat.busy, default=None)

        return asyncio.run(self._read(lambda frontier: frontier.workers(), busiest))

    def progress(self) -> Progress:
        return self.wait_for(lambda _: True)

    def fetches(self) -> Counter[str]:
        """How often the site was asked for each page."""
        return Counter(hit.path for hit in self.site.hits())

    def check(self, pages: int) -> Progress:
        """Every page once in the store, none lost, counters equal to the rows."""
        return asyncio.run(self._check(pages))

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    async def _read(self, read: Callable[[Frontier], Awaitable[S]], find: Callable[[S], T | None]) -> T:
        """What `find` makes of what is read from the frontier, once it finds something."""
        frontier = await open_frontier(self.url)

        async def found() -> T | None:
            return find(await read(frontier))

        try:
            result = await eventually(found, seconds=SECONDS, pause=0.02)
        finally:
            await frontier.close()
        assert result is not None
        return result

    async def _check(self, pages: int) -> Progress:
        async with opened(Places(frontier=self.url, store=self.store or str(self.folder / "shoal.db"))) as parts:
            frontier, store = parts
            (crawl,) = [one for one in await frontier.crawls() if one.id == self.crawl]
            found = await check_crawl(frontier, store, crawl)
            assert found.faults == []
            assert found.ok == found.progress.done == found.progress.known == pages
            return found.progress


@contextmanager
def fleet_on_a_graph(folder: Path, server: RedisServer, *, pages: int) -> Iterator[RedisFleet]:
    """A fleet for a site of so many pages; its processes end with the block."""
    with site_process("--graph", str(pages), log=folder / "hits.jsonl") as site:
        fleet = RedisFleet(folder, site, server.url)
        yield fleet
        fleet.end()


def ended(process: subprocess.Popen[str]) -> tuple[str, str, int]:
    """What a process wrote, and its return code."""
    out, err = process.communicate(timeout=SECONDS)
    return out, err, process.returncode


def keys_of(server: RedisServer) -> set[str]:
    """Every key on the server."""
    cursor, keys = -1, set[str]()
    while cursor:
        cursor, found = server.call("SCAN", max(cursor, 0), "COUNT", 1000)
        keys |= {key.decode() for key in found}
    return keys
