"""`shoal advise` on crawls that are truly bound by each thing: it names that thing, and what doubling would bring."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Folder

from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.servers.proxy_servers import Tinyproxy
from shoal.testing.sites.site_process import SiteProcess, site_process

PAGES = 4_000
SPIDER = """
import time

from shoal import Item, Spider

class Graph(Spider):
    start = ["{url}"]
    rate = "{rate}"
    settings = {settings!r}

    def parse(self, page):
        ends = time.process_time() + {burn}
        while time.process_time() < ends:
            pass
        yield Item(key=page.url)
        yield page.follow("a")
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteProcess]:
    with site_process("--graph", str(PAGES), log=tmp_path_factory.mktemp("graph") / "hits.jsonl") as site:
        yield site


def write(folder: Folder, url: str, *, rate: str = "unlimited", burn: float = 0.0, **settings: Any) -> str:
    always = {"allow_private": True, "obey_robots": False, "pace": "fixed", "per_host": 64}
    text = SPIDER.format(url=url, rate=rate, burn=burn, settings={**always, **settings})
    (folder.path / "graph.py").write_text(text)
    return "graph.py"


def advice_during(folder: Folder, *command: str, pages: int = 40) -> Any:
    """What is advised while the crawl runs, from the moment on in which so many pages are done."""
    with folder.start("run", *command) as running:
        folder.wait_for_pages(pages, crawl="graph-1")
        told = json.loads(folder.run("advise", "graph-1", "--for", "4", "--json").stdout)["advice"]
        running.kill()
    return told


# Each takes about ten seconds: a start, a few pages, and four seconds to measure.
def test_a_paced_site(folder: Folder, graph: SiteProcess) -> None:
    told = advice_during(folder, write(folder, graph.url, rate="15/s"))
    assert (told["bound"], told["is_certain"], told["workers_wanted"]) == ("pace", True, 1)
    assert told["gain_of_doubling"] < 1.25


def test_a_heavy_handler(folder: Folder, graph: SiteProcess) -> None:
    told = advice_during(folder, write(folder, graph.url, burn=0.03))
    assert told["bound"] == "cpu"
    assert "handlers" in told["lines"][0]
    assert told["workers_wanted"] > 1


def test_slots_that_are_taken(folder: Folder, tmp_path: Path) -> None:
    with site_process("--graph", str(PAGES), "--latency", "1.5", log=tmp_path / "hits.jsonl") as site:
        told = advice_during(folder, write(folder, site.url, concurrency=8), pages=12)
    assert (told["bound"], told["is_certain"]) == ("slots", False)
    assert told["gain_of_doubling"] > 1.5


def test_few_exits(folder: Folder, graph: SiteProcess) -> None:
    proxies = [Tinyproxy(folder.path, address=f"127.0.3.{number}").start() for number in (1, 2)]
    try:
        urls = [proxy.url for proxy in proxies]
        (folder.path / "shoal.toml").write_text(f'[proxies.few]\nurls = {urls!r}\nrate = "2/s"\n')
        told = advice_during(folder, write(folder, graph.url, pool="few"), pages=10)
    finally:
        for proxy in proxies:
            proxy.stop()
    assert told["bound"] == "exits"
    assert told["gain_of_doubling"] < 1.25


def test_a_slow_store(folder: Folder, graph: SiteProcess, postgres: PostgresServer, database: str) -> None:
    store = postgres.url(database)
    folder.run("store", "init", "--store", store)
    # Every write of items takes half a second, as on a disk that is used up.
    sleep = "BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END"
    postgres.call(f"CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS '{sleep}'", database=database)
    trigger = "CREATE TRIGGER slow AFTER INSERT ON shoal.items FOR EACH STATEMENT EXECUTE FUNCTION slow()"
    postgres.call(trigger, database=database)
    command = [write(folder, graph.url, flush_pages=8), "--store", store]
    told = advice_during(folder, *command)
    assert told["bound"] == "store"
    assert "a faster store helps" in told["lines"][1]


def test_little_bandwidth(folder: Folder) -> None:
    with narrow_site(bytes_per_second=400_000) as url:
        told = advice_during(folder, write(folder, url, concurrency=16), pages=10)
    assert (told["bound"], told["is_certain"]) == ("line", False)
    assert told["gain_of_doubling"] < 1.25


class Narrow:
    """A site of large pages behind a line that lets so many bytes per second through, for all answers together."""

    BODY, CHUNK = 60_000, 4_000

    def __init__(self, bytes_per_second: int) -> None:
        self._seconds = self.CHUNK / bytes_per_second
        self._line = asyncio.Lock()
        self.answering: set[asyncio.Task[Any]] = set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.answering.add(task)
        try:
            await self._answer(reader, writer)
        finally:
            self.answering.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while request := await reader.readuntil(b"\r\n\r\n"):
                number = int("".join(filter(str.isdigit, request.split()[1].decode())) or 0)
                links = "".join(f'<a href="/{20 * number + index}">x</a>' for index in range(1, 21))
                body = f"<html><body>{links}{'x' * self.BODY}</body></html>".encode()[: self.BODY]
                head = f"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(head.encode())
                for start in range(0, len(body), self.CHUNK):
                    async with self._line:
                        await asyncio.sleep(self._seconds)
                    writer.write(body[start : start + self.CHUNK])
                    await writer.drain()


@contextlib.contextmanager
def narrow_site(*, bytes_per_second: int) -> Iterator[str]:
    """Its URL, until the block ends."""
    found: list[str] = []
    begun, over = threading.Event(), threading.Event()

    @contextlib.asynccontextmanager
    async def served() -> AsyncIterator[None]:
        site = Narrow(bytes_per_second)
        server = await asyncio.start_server(site.answer, "127.0.0.1", 0)
        found.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        begun.set()
        try:
            yield
        finally:
            server.close()
            answering = list(site.answering)
            for task in answering:
                task.cancel()
            await asyncio.gather(*answering, return_exceptions=True)

    async def serve() -> None:
        async with served():
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert begun.wait(60)
    try:
        yield found[0]
    finally:
        over.set()
        thread.join(10)
