"""Several runs that feed one crawl at once: each is waited for, none is cut short, and one that is lost is told of."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from command_line import SECONDS, Folder, Started, interrupt

from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import FEEDER_SECONDS
from shoal.model import CrawlState, Progress
from shoal.policy.verdicts import NOT_FED
from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import eventually

PRODUCTS = 1
CRAWL = "fed-1"
SPIDER = """
from shoal import Spider, Stdin

class Fed(Spider):
    start = Stdin()
    rate = "unlimited"
    settings = {"allow_private": True, "obey_robots": False}

    def parse(self, page):
        yield {"url": page.url}
"""


class Feeding:
    """Runs of one spider, each with a standard input of its own."""

    def __init__(self, folder: Folder, site: SiteProcess, frontier: str) -> None:
        (folder.path / "fed.py").write_text(SPIDER)
        self.folder = folder
        self.site = site
        self.frontier = frontier
        self.started: list[Started] = []

    def run(self) -> Started:
        places = ("--frontier", self.frontier, "--store", str(self.folder.path / "items.db"))
        # How long a start takes is part of how a feeder judges those before it.
        self.started.append(self.folder.start("run", "fed.py", *places, stdin=-1, real=True))
        return self.started[-1]

    def urls(self, name: str, count: int) -> list[str]:
        return [f"{self.site.url}?run={name}&n={number}" for number in range(count)]

    def write(self, run: Started, urls: list[str]) -> None:
        assert run.stdin is not None
        run.stdin.write("".join(f"{url}\n" for url in urls))
        run.stdin.flush()

    def end(self, run: Started, *, code: int = 0) -> str:
        """Close its input and wait for its end; gives what it wrote."""
        out, err = run.communicate(timeout=SECONDS)
        assert run.returncode == code, f"{out}\n{err}"
        return f"{out}\n{err}"

    def let_time_pass(self) -> None:
        """The time of every feeder is over, in place of half a minute of waiting; one that feeds says so again."""
        with closing(sqlite3.connect(self.frontier, isolation_level=None)) as database:
            database.execute("UPDATE feeder SET until = 1.0")

    def until_made_up(self) -> None:
        """Wait until the runs have made up for feeders that were lost before them, some seconds after their begin: what
        is lost after that is told of. They drop such a feeder as is added here."""
        asyncio.run(self._lose_a_feeder())
        self.until(feeders_lost=1)
        self.until(feeders_lost=0)

    async def _lose_a_feeder(self) -> None:
        frontier = await open_frontier(self.frontier)
        await frontier.set_feeding(CRAWL, "lost before", seconds=0.001)
        await frontier.close()

    def stored(self) -> set[str]:
        with closing(sqlite3.connect(self.folder.path / "items.db")) as database:
            return {url for (url,) in database.execute("SELECT url FROM item")}

    def until(self, **counts: object) -> Progress:
        """Wait until the crawl has these values."""
        return asyncio.run(self._until(counts))

    async def _until(self, counts: dict[str, object]) -> Progress:
        frontier = await open_frontier(self.frontier)

        async def read() -> Progress | None:
            if not any(crawl.id == CRAWL for crawl in await frontier.crawls()):
                return None
            progress = await frontier.progress(CRAWL)
            return progress if all(getattr(progress, name) == value for name, value in counts.items()) else None

        try:
            found = await eventually(read, pause=0.05, seconds=SECONDS)
        finally:
            await frontier.close()
        assert found is not None
        return found


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.full)])
def frontier(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "shoal.db") if request.param == "sqlite" else request.getfixturevalue("redis").url


@pytest.fixture
def feeding(folder: Folder, site: SiteProcess, frontier: str) -> Iterator[Feeding]:
    feeding = Feeding(folder, site, frontier)
    yield feeding
    for run in feeding.started:
        run.kill()
        run.wait()
        for stream in (run.stdin, run.stdout, run.stderr):
            if stream is not None:
                stream.close()


def kill(run: Started) -> None:
    """Kill a run; its input ends after it: the end of the input is the end of a start that was fed."""
    run.kill()
    run.wait(SECONDS)
    run.communicate()


def test_the_first_of_two_feeders_to_end_does_not_end_the_other(feeding: Feeding) -> None:
    one, two = feeding.urls("one", 20), feeding.urls("two", 40)
    first, second = feeding.run(), feeding.run()
    feeding.write(first, one)
    feeding.write(second, two[:20])
    feeding.until(done=40)
    assert first.stdin is not None
    first.stdin.close()
    first.stdin = None
    # The crawl looks empty now: only its second feeder says that there is more.
    feeding.until(done=40, feeding=True, state=CrawlState.RUNNING)
    feeding.write(second, two[20:30])
    feeding.until(done=50)
    feeding.write(second, two[30:])
    feeding.end(second)
    feeding.end(first)
    assert feeding.stored() == {*one, *two}
    assert feeding.until(state=CrawlState.FINISHED).feeders_lost == 0


@pytest.mark.parametrize("frontier", ["sqlite"], indirect=True)
def test_a_killed_feeder_is_waited_for_and_then_told_of_until_the_start_is_fed(feeding: Feeding) -> None:
    other = feeding.run()
    feeding.write(other, feeding.urls("other", 10))
    feeding.until(done=10)
    killed = feeding.run()
    feeding.write(killed, feeding.urls("killed", 10))
    feeding.until(done=20)
    feeding.until_made_up()
    kill(killed)
    feeding.let_time_pass()
    assert NOT_FED in feeding.end(other, code=1)
    assert feeding.until(state=CrawlState.FINISHED).feeders_lost == 1
    status = feeding.folder.run("status", CRAWL, "--frontier", feeding.frontier).stdout
    assert NOT_FED in status
    again = feeding.run()
    feeding.write(again, feeding.urls("killed", 15))
    said = feeding.end(again)
    assert f"{CRAWL} was finished, but its start was not fed to its end: it goes on" in said
    assert len(feeding.stored()) == 25
    assert feeding.until(state=CrawlState.FINISHED).feeders_lost == 0


def test_an_interrupted_feeder_is_not_waited_for_but_told_of(feeding: Feeding) -> None:
    other = feeding.run()
    feeding.write(other, feeding.urls("other", 10))
    feeding.until(done=10)
    feeding.until_made_up()
    stopped = feeding.run()
    feeding.write(stopped, feeding.urls("stopped", 10))
    feeding.until(done=20)
    interrupt(stopped)
    stopped.wait(SECONDS)
    assert stopped.returncode == 130
    assert NOT_FED in feeding.end(other, code=1)


def test_a_run_that_is_killed_and_started_again_at_once_neither_waits_nor_complains(feeding: Feeding) -> None:
    killed = feeding.run()
    feeding.write(killed, feeding.urls("a", 10))
    feeding.until(done=10)
    kill(killed)
    again = feeding.run()
    feeding.write(again, feeding.urls("a", 20))
    said = feeding.end(again)
    assert f"resuming {CRAWL}" in said
    assert NOT_FED not in said
    assert len(feeding.stored()) == 20


def test_a_run_goes_on_when_the_crawl_was_finished_without_it(feeding: Feeding) -> None:
    run = feeding.run()
    for step in range(1, 4):
        feeding.write(run, feeding.urls(f"step {step}", 5))
        feeding.until(done=5 * step)
        asyncio.run(finish_without(feeding.frontier))
    feeding.write(run, feeding.urls("last", 5))
    feeding.end(run)
    assert len(feeding.stored()) == 20


async def finish_without(url: str) -> None:
    """Let the crawl end as if its feeders had been silent for too long."""
    frontier: Frontier = await open_frontier(url)

    async def is_finished() -> bool:
        await frontier.set_feeding(CRAWL, "test", seconds=0, makes_up=2 * FEEDER_SECONDS)
        return bool((await frontier.lease([CRAWL], 1, worker="test", seconds=1.0, horizon=0.0)).finished)

    try:
        await eventually(is_finished, pause=0.05)
    finally:
        await frontier.close()
