"""What the browser tests look at: crawls in a real frontier and store, and a real `shoal serve` beside them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from shoal import Spider
from shoal.archive import open_archive
from shoal.archive.base import Capture, RawPage
from shoal.crawl.record import describe_crawl
from shoal.duties.schedules.orders import Notes
from shoal.duties.schedules.scheduler import DUTY
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.model import VIA, Crawl, CrawlState, Dead, Done, ExitUse, Heartbeat, Pool, Retry, Task
from shoal.settings.table import Settings
from shoal.store import open_store
from shoal.store.base import FetchRow, ItemRow
from shoal.urls.canonical import UrlRules

T = TypeVar("T")

SECONDS = 60.0
LEASE_SECONDS = 600.0
HORIZON = 1e6  # a lane's next starts, however far ahead: the pace is not what is tested here


class Shop(Spider):
    """Never run: its crawls are made by hand."""

    name = "shop"
    start = ("https://shop.test/",)


class Stage:
    """A folder with a frontier and a store. Tests change them behind the server's back, as workers do."""

    def __init__(self, folder: Path, *, frontier: str = "") -> None:
        self.folder = folder
        self.path = folder / "shoal.db"
        self.frontier = frontier  # a URL, if it is not the file

    def run(self, act: Callable[[Frontier], Awaitable[T]], *, clock: Callable[[], float] = time.time) -> T:
        """Let `act` use the frontier."""

        async def opened() -> T:
            frontier: Frontier
            if self.frontier:
                frontier = await open_frontier(self.frontier)
            else:
                frontier = await SqliteFrontier.open(self.path, clock=clock)
            try:
                return await act(frontier)
            finally:
                await frontier.close()

        return _run(opened)

    def crawl(
        self,
        name: str,
        urls: Sequence[str] = (),
        *,
        rate: str = "1/s",
        per_host: int = 100_000,
        fed: bool = True,
    ) -> None:
        """A crawl with these URLs queued. One that is not fed to its end is never finished."""
        crawl = _described(name, Settings(rate=rate, obey_robots=False, per_host=per_host))

        async def act(frontier: Frontier) -> None:
            await frontier.open_crawl(crawl)
            await frontier.set_feeding(name, "test", seconds=0 if fed else 1e6)
            await _put(frontier, crawl, urls)

        self.run(act)

    def put_kind(self, name: str, url: str, *, kind: str) -> None:
        """A task that only workers of this kind do."""
        task = replace(_task(_rules(), url), kind=kind)
        self.run(lambda frontier: frontier.put(name, [task]))

    def crawls(self, names: Sequence[str]) -> None:
        """Several crawls with nothing in them yet."""

        async def act(frontier: Frontier) -> None:
            for name in names:
                await frontier.open_crawl(_described(name, Settings(obey_robots=False)))

        self.run(act)

    def work(self, name: str, pages: int, *, worker: str = "test-1", **outcome: Any) -> int:
        """Do so many pages; `outcome` goes into the Done, or `dead` or `retry` names a reason. Gives how many."""
        dead, retry, detail = (outcome.pop(word, "") for word in ("dead", "retry", "detail"))

        async def act(frontier: Frontier) -> int:
            batch = await frontier.lease([name], pages, worker=worker, seconds=LEASE_SECONDS, horizon=HORIZON)
            results = [
                Dead(lease=lease, reason=dead, detail=detail)
                if dead
                else Retry(lease=lease, delay=3600.0, reason=retry)
                if retry
                else Done(lease=lease, **outcome)
                for lease in batch.leases
            ]
            await frontier.settle(results)
            return len(results)

        return self.run(act)

    def bury(self, name: str, letters: Sequence[tuple[str, str]]) -> None:
        """Dead letters: URLs and reasons."""

        async def act(frontier: Frontier) -> None:
            rules = _rules()
            for first in range(0, len(letters), 1000):
                made = [(_task(rules, url), reason) for url, reason in letters[first : first + 1000]]
                await frontier.bury(name, made)

        self.run(act)

    def exits(self, name: str, pool: Pool, uses: Mapping[str, ExitUse], *, host: str = "shop.test") -> None:
        """A crawl whose requests leave via a pool, one through each exit with this report."""
        crawl = replace(_described(name, Settings(obey_robots=False)), pools=(pool,))
        lane = f"{host}{VIA}{pool.name}"

        async def act(frontier: Frontier) -> None:
            await frontier.open_crawl(crawl)
            tasks = [Task(url=f"https://{host}/{n}", key=n, lane=lane) for n in range(2 * len(uses))]
            await frontier.put(name, tasks)
            batch = await frontier.lease([name], len(uses), worker="test-1", seconds=LEASE_SECONDS, horizon=HORIZON)
            assert {lease.exit for lease in batch.leases} == uses.keys()
            await frontier.settle([Done(lease=lease, exit=uses[lease.exit]) for lease in batch.leases])

        self.run(act)

    def archive(self, name: str, url: str, body: bytes) -> None:
        """A page in the archive `pages`, and the fetch that brought it."""
        key, at = _rules().resolve(url).key, time.time()
        about = {"crawl": name, "url": url, "key": key, "status": 200, "at": at, "token": 3, "size": len(body)}
        digest = hashlib.sha256(body).hexdigest()
        kept = Capture(**about, final_url=url, headers={"content-type": "text/html"}, content_hash=digest)

        async def act() -> None:
            archive = await open_archive(str(self.folder / "pages"), create=True)
            (archived,) = await archive.write([RawPage(kept, body)])
            await archive.close()
            store = await open_store(str(self.path))
            row = FetchRow(**about, outcome="ok", attempt=3, worker="test-1", content_hash=digest, archived=archived)
            await store.write([], [row])
            await store.close()

        _run(act)

    def schedules(self, notes: Notes) -> None:
        """What a coordinator that has the duty from now on has noted of schedules."""
        data = msgspec.json.encode(notes)
        self.run(lambda frontier: frontier.hold_duty(DUTY, "test", seconds=1e6, notes=data))

    def set_state(self, name: str, state: CrawlState) -> None:
        self.run(lambda frontier: frontier.set_state(name, state))

    def state(self, name: str) -> str:
        async def act(frontier: Frontier) -> str:
            return (await frontier.progress(name)).state.value

        return self.run(act)

    def beat(self, name: str, worker: str, **fields: Any) -> None:
        """A heartbeat."""
        usual = {
            "host": "machine.test",
            "pid": 4711,
            "version": "0.1.0",
            "slots": 64,
            "busy": 12,
            "pages": 1234,
            "pages_per_second": 21.5,
            "memory_bytes": 98_000_000,
            "load": 0.62,
            "machine": "m1",
            "started": time.time() - 4000,
            "seen": time.time(),
        }
        beat = Heartbeat(**{**usual, **fields, "worker": worker, "crawl": name})
        at = fields.get("seen", time.time())
        self.run(lambda frontier: frontier.beat(beat), clock=lambda: at)

    def store(self, name: str, items: Sequence[tuple[str, str, dict[str, Any]]]) -> None:
        """Items (key, URL, fields), each with the two attempts at its page: the first one failed."""
        rules = _rules()
        at = time.time() - len(items)
        rows = [
            ItemRow(spider="shop", key=key, crawl=name, url=url, data=json.dumps(data).encode(), token=1, at=at + index)
            for index, (key, url, data) in enumerate(items)
        ]
        fetches = [
            FetchRow(
                crawl=name,
                key=rules.resolve(url).key,
                url=url,
                outcome="ok",
                token=2,
                attempt=2,
                at=at,
                status=200,
                worker="test-1",
                size=48_213,
                elapsed=0.231,
                item_keys=json.dumps([key]),
            )
            for key, url, _ in items
        ]
        failed = {
            "token": 1, "attempt": 1, "at": at - 5, "outcome": "retry:timeout", "status": 0, "size": 0,
            "elapsed": 30.0, "error": "timeout: no answer within 30 s", "item_keys": "",
        }  # fmt: skip
        earlier = [replace(line, **failed) for line in fetches]

        async def act() -> None:
            store = await open_store(str(self.path))
            await store.write(rows, [*earlier, *fetches])
            await store.close()

        _run(act)

    def mark_gone(self, *, unseen_since: float) -> None:
        """Items that were not seen since then are gone now."""

        async def act() -> None:
            store = await open_store(str(self.path))
            await store.mark_gone("shop", at=time.time(), unseen_since=unseen_since)
            await store.close()

        _run(act)

    @contextlib.contextmanager
    def serving(self, *arguments: str, port: int = 0, environ: dict[str, str] | None = None) -> Iterator[str]:
        """The URL of a serving process, which ends with the block."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")} | (environ or {})
        command = [sys.executable, "-m", "shoal", "serve", "--port", str(port), *arguments]
        with subprocess.Popen(command, cwd=self.folder, env=env, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line.startswith("serving http://"), line
                yield line.split()[1].rstrip("/")
            finally:
                process.kill()


def _run(act: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Playwright has an event loop in the thread of the tests, and there may be only one in a thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(act())).result()


def _described(name: str, settings: Settings) -> Crawl:
    return describe_crawl(name, Shop(), settings=settings, reference="shop.py", pools={})


def _rules() -> UrlRules:
    return UrlRules(Settings(), start_hosts=["shop.test"])


def _task(rules: UrlRules, url: str) -> Task:
    link = rules.resolve(url)
    return Task(url=link.url, key=link.key, lane=link.lane)


async def _put(frontier: Frontier, crawl: Crawl, urls: Sequence[str]) -> None:
    rules = _rules()
    for first in range(0, len(urls), 5000):
        await frontier.put(crawl.id, [_task(rules, url) for url in urls[first : first + 5000]])
