"""The crawls of the case M, each bound by one thing: measured with one worker, then with a second one beside it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.crawlers import HERE, fresh_folder
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.insight.advice import Advice, advise
from shoal.insight.survey import Survey, surveyed
from shoal.store.postgres.store import PostgresStore
from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.servers.proxy_servers import Tinyproxy
from shoal.testing.sites.narrow_site import narrow_site
from shoal.testing.waiting import eventually

START_SECONDS, PAUSE_SECONDS = 60.0, 0.1
# So many pages of each worker first: at its start a crawl is bound by links.
FIRST_PAGES, FIRST_PAGES_EACH = 40, 10
LEAST_PAGES = 50
# Enough of them that one which fails, and rests for a minute, changes little.
PROXIES = 10
WRITE_SECONDS = 0.2
LINE_BYTES = 2_000_000


class Trial(NamedTuple):
    """A crawl that one thing bounds: how its spider is told, the flags of all its workers, and those of `run` alone.

    `longer`: it is measured so many times as long as the others."""

    what: str
    named: str
    environment: dict[str, str]
    flags: tuple[str, ...] = ()
    run_flags: tuple[str, ...] = ()
    longer: float = 1.0


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was advised with one worker, and the pages per second with one and with two."""

    what: str
    named: str
    advice: Advice
    doubled: float

    @property
    def rate(self) -> float:
        return self.advice.rate

    @property
    def said(self) -> float:
        return self.advice.gain_of_doubling

    @property
    def gain(self) -> float:
        return self.doubled / self.rate if self.rate else 0.0

    @property
    def error(self) -> float:
        """How far the prediction is from what was measured, as a share of that."""
        return abs(self.said - self.gain) / self.gain if self.gain else 1.0


@contextlib.contextmanager
def trials(start: str) -> Iterator[list[Trial]]:
    """One for each thing that may bound a crawl. `start` is a page of a site that is bound by nothing itself."""
    with contextlib.ExitStack() as stack:
        line = stack.enter_context(narrow_site(bytes_per_second=LINE_BYTES))
        pool = stack.enter_context(_proxies())
        store = stack.enter_context(_slow_store())
        site = {"BENCH_URL": start}
        yield [
            # Its pages are written in waves of as many as it has at once.
            Trial("a heavy handler", "cpu", site | {"BENCH_BURN": "0.01", "BENCH_CONCURRENCY": "48"}, longer=2.0),
            Trial("a paced host", "pace", site | {"BENCH_RATE": "40/s"}),
            Trial("few slots", "slots", site | {"BENCH_CONCURRENCY": "4"}),
            Trial("a slow store", "store", site | {"BENCH_CONCURRENCY": "32"}, store, ("--set", "flush_pages=4")),
            Trial("few exits", "exits", site, run_flags=pool),
            Trial("little bandwidth", "line", {"BENCH_URL": line, "BENCH_CONCURRENCY": "16"}),
        ]


@contextlib.contextmanager
def _slow_store() -> Iterator[tuple[str, ...]]:
    """The flags for a PostgreSQL server of which each write takes 0.2 s, as over a long line."""
    server = PostgresServer().start()
    try:
        asyncio.run(_make_tables(server.url()))
        wait = f"BEGIN PERFORM pg_sleep({WRITE_SECONDS}); RETURN NULL; END"
        server.call(f"CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS '{wait}'")
        server.call("CREATE TRIGGER slow AFTER INSERT ON shoal.items FOR EACH STATEMENT EXECUTE FUNCTION slow()")
        yield ("--store", server.url())
    finally:
        server.remove()


async def _make_tables(url: str) -> None:
    await (await PostgresStore.open(url)).close()


@contextlib.contextmanager
def _proxies() -> Iterator[tuple[str, ...]]:
    """The flags for a pool of some proxies at three requests per second each."""
    folder = fresh_folder("advice-proxies")
    with contextlib.ExitStack() as running:
        urls = []
        for number in range(PROXIES):
            proxy = Tinyproxy(folder, address=f"127.2.9.{1 + number}")
            running.callback(proxy.stop)
            urls.append(proxy.start().url)
        (folder / "proxies.toml").write_text(f'[proxies.few]\nurls = {urls!r}\nrate = "3/s"\n')
        yield ("--proxies", str(folder / "proxies.toml"))


async def doubled(trial: Trial, *, seconds: float) -> Found:
    """What is advised while one worker crawls, and the rate when a second one has joined it."""
    folder, seconds = fresh_folder(f"advice-{trial.named}"), trial.longer * seconds
    spider = str(HERE / "advice_spider.py")
    with contextlib.ExitStack() as running:
        running.enter_context(_running(trial, folder, "run", spider, "--workers", "1", *trial.run_flags))
        async with _opened(folder / "shoal.db") as frontier:
            advice = await _measured(await _at_work(frontier, 1), frontier, seconds=seconds)
            running.enter_context(_running(trial, folder, "worker", spider))
            twice = await _measured(await _at_work(frontier, 2), frontier, seconds=seconds)
    return Found(what=trial.what, named=trial.named, advice=advice, doubled=twice.rate)


@contextlib.contextmanager
def _running(trial: Trial, folder: Path, command: str, *words: str) -> Iterator[None]:
    with (folder / f"{command}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal", command, *words, *trial.flags], cwd=folder, stdout=log, stderr=log,
            env=os.environ | trial.environment, start_new_session=True,
        )  # fmt: skip
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.asynccontextmanager
async def _opened(path: Path) -> AsyncIterator[Frontier]:
    """The crawl's frontier, as soon as the crawl is there."""
    await eventually(path.exists, seconds=START_SECONDS, pause=PAUSE_SECONDS)
    frontier = await open_frontier(str(path))
    try:
        yield frontier
    finally:
        await frontier.close()


async def _at_work(frontier: Frontier, workers: int) -> Survey:
    """The crawl, once so many workers have got going."""

    async def read() -> Survey | None:
        crawls = await frontier.crawls()
        if not crawls:
            return None
        survey = await surveyed(crawls[0], frontier=frontier)
        ready = [member for member in survey.at_work if member.beat.pages >= FIRST_PAGES_EACH]
        return survey if len(ready) >= workers and survey.progress.done >= FIRST_PAGES else None

    found = await eventually(read, seconds=START_SECONDS, pause=PAUSE_SECONDS)
    assert found is not None
    return found


async def _measured(before: Survey, frontier: Frontier, *, seconds: float) -> Advice:
    """What is advised after so many seconds; on a busy machine later, when enough pages are done to tell a rate."""

    async def read() -> Survey | None:
        now = await surveyed(before.crawl, frontier=frontier)
        return now if now.progress.done - before.progress.done >= LEAST_PAGES else None

    await asyncio.sleep(seconds)
    now = await eventually(read, seconds=START_SECONDS, pause=PAUSE_SECONDS)
    assert now is not None
    return advise(before, now)
