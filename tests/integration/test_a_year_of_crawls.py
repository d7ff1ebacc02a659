"""A spider that runs daily for a year, by a clock that the test moves: what it leaves in the frontier does not grow."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import pytest

from shoal.crawl.folder_inbox import FolderInbox
from shoal.crawl.inbox import Inbox, NoInbox
from shoal.crawl.known_pages import earlier_crawls, learn_earlier
from shoal.crawl.record import CrawlRecord
from shoal.duties.clearing import Clearing
from shoal.frontier.base import Frontier
from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.model import Crawl, CrawlState, Done, Heartbeat, Point
from shoal.settings.table import Settings
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.servers.redis_server import RedisServer

pytestmark = pytest.mark.full

DAY = 86_400.0
PAGES = 40
MONTH, SEASON, YEAR = 30, 120, 365
KEY_OCTETS = 120  # of a key with its place in an index or a hash table that is half empty
KEPT = 10
DEFAULTS = Settings()
POINT = Point(
    queued=0, delayed=0, leased=0, done=PAGES, dead=0, retried=0, lost=0, outcomes={}, fetch_times=(),
    received_bytes=0, workers=1, cost=0.0,
)  # fmt: skip


class Used(NamedTuple):
    """What a frontier takes: keys or rows, and bytes; how many crawls it has, and what was said by then."""

    records: int
    octets: int
    crawls: int = 0
    said: Sequence[str] = ()


class Place(Protocol):
    """Where the frontier is, seen past the frontier."""

    async def open(self, clock: FakeClock) -> Frontier: ...

    def used(self) -> Used: ...


class RedisPlace:
    def __init__(self, server: RedisServer) -> None:
        self._server = server

    async def open(self, clock: FakeClock) -> Frontier:
        return await RedisFrontier.open(self._server.url, clock=clock)

    def used(self) -> Used:
        octets = self._server.call("INFO", "memory")["used_memory_dataset"]
        return Used(self._server.call("DBSIZE"), octets)


class FilePlace:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "shoal.db"

    async def open(self, clock: FakeClock) -> Frontier:
        return await SqliteFrontier.open(self._path, clock=clock)

    def used(self) -> Used:
        with contextlib.closing(sqlite3.connect(self._path)) as db:
            names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            rows = sum(db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names)
            (pages,) = db.execute("PRAGMA page_count").fetchone()
        return Used(rows, pages * 4096)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis", "--appendonly", "no").start()
    yield server
    server.kill()


@pytest.fixture(params=["redis", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return RedisPlace(request.getfixturevalue("server")) if request.param == "redis" else FilePlace(tmp_path)


@asynccontextmanager
async def no_inbox() -> AsyncIterator[Inbox]:
    yield NoInbox()


async def one_day(
    frontier: Frontier, clock: FakeClock, number: int, *, settings: Settings = DEFAULTS, skips: bool = False
) -> int:
    """A crawl from its beginning to its end, with all that it leaves; gives how many pages it had to fetch. With
    `skips` it is one of `shoal run --again --skip-known` over a site with one new page a day."""
    known = earlier_crawls(await frontier.crawls(), settings).known_from if skips else ()
    record = CrawlRecord(settings=settings, spider="books.py", skips_known=skips, known_from=known)
    name = f"books-{number}"
    fields = {"interval": 0.0, "cap": 1000, "created": clock(), "settings": msgspec.to_builtins(record)}
    crawl = await frontier.open_crawl(Crawl(id=name, spider="books", **fields))
    await learn_earlier(crawl, frontier=frontier, say=lambda _: None)
    # Else other pages every day, on a host that was not there before.
    first = number if skips else number * PAGES
    hosts = ("a.test", "b.test", f"day-{0 if skips else number}.test")
    await frontier.put(name, [make_task(first + page, hosts[page % 3]) for page in range(PAGES)])
    await frontier.beat(
        Heartbeat(worker=f"w-{number}", crawl=name, host="h", pid=1, version="1", slots=1, left=clock())
    )
    await frontier.keep_point(name, POINT)
    batch = await frontier.lease([name], PAGES, worker=f"w-{number}", seconds=60.0, horizon=0.0)
    await frontier.settle([Done(lease=lease, notes={"items": 1}) for lease in batch.leases])
    assert name in (await frontier.lease([name], 1, worker=f"w-{number}", seconds=60.0, horizon=0.0)).finished
    return len(batch.leases)


async def used_by(
    place: Place, *, days: int = YEAR, settings: Settings = DEFAULTS, skips: bool = False
) -> dict[int, Used]:
    """What the frontier takes after some of the days, with what is said on the way."""
    clock, said = FakeClock(), list[str]()
    frontier = await place.open(clock)
    clearing = Clearing(frontier, inbox=no_inbox, say=said.append, clock=clock)
    used = {}
    for day in range(1, days + 1):
        pages = await one_day(frontier, clock, day, settings=settings, skips=skips)
        assert pages == (1 if skips and day > 1 else PAGES)
        clock.advance(DAY / 2)
        assert await clearing.look()
        clock.advance(DAY / 2)
        if day in (MONTH, days):
            crawls = await frontier.crawls()
            used[day] = place.used()._replace(crawls=len(crawls), said=said[:])
            assert {crawl.state for crawl in crawls} == {CrawlState.FINISHED}
    await frontier.close()
    return used


async def test_a_daily_crawl_fills_a_frontier_no_further_after_its_first_weeks(place: Place) -> None:
    used = await used_by(place)
    month, year = used[MONTH], used[YEAR]
    assert (month.crawls, year.crawls) == (KEPT, KEPT)
    assert year.records == month.records
    assert year.octets < 1.1 * month.octets
    assert len(year.said) == YEAR - KEPT
    assert year.said[0] == (
        "1 ended crawl of books removed from the frontier (keep_crawls = 10): books-1;"
        " items, log and archived pages stay"
    )


async def test_a_daily_crawl_that_skips_what_is_known_grows_by_the_keys_of_new_pages_alone(place: Place) -> None:
    used = await used_by(place, skips=True)
    month, year = used[MONTH], used[YEAR]
    assert (month.crawls, year.crawls) == (KEPT, KEPT)
    # Each crawl that is kept knows what it has done and has learnt: a row of a file, less than a key in Redis.
    new = KEPT * (YEAR - MONTH)
    assert year.records - month.records <= new
    assert year.octets - month.octets < KEY_OCTETS * new + 0.1 * month.octets


async def test_a_frontier_that_nothing_is_removed_from_grows(place: Place) -> None:
    """That what the tests above measure can grow."""
    kept = Settings(keep_crawls=0, crawl_ttl="", known_ttl="")
    used = await used_by(place, days=SEASON, settings=kept)
    assert used[SEASON].crawls == SEASON
    assert used[SEASON].records > 3 * used[MONTH].records
    assert used[SEASON].octets > 1.3 * used[MONTH].octets


async def test_what_is_removed_is_one_processs_work_and_is_not_looked_for_again_at_once(
    place: Place,
) -> None:
    clock, said = FakeClock(), list[str]()
    frontier, second = await place.open(clock), await place.open(clock)
    for day in range(1, 20):
        await one_day(frontier, clock, day)
        clock.advance(DAY)
    first = Clearing(frontier, inbox=no_inbox, say=said.append, clock=clock)
    other = Clearing(second, inbox=no_inbox, say=said.append, clock=clock)
    assert await first.look()
    assert not await other.look()
    clock.advance(601.0)
    assert await other.look()
    assert said == [
        "9 ended crawls of books removed from the frontier (keep_crawls = 10): books-9, books-8, books-7 and 6 more;"
        " items, log and archived pages stay"
    ]
    clock.advance(14 * DAY)
    assert await first.look()
    assert {crawl.keys for crawl in await second.crawls()} == {"dropped"}
    assert said[1].startswith("the URL keys of books-19 were dropped (known_ttl = 14d)")
    await frontier.close()
    await second.close()


async def test_a_crawl_that_a_killed_process_has_half_deleted_is_removed(place: Place) -> None:
    clock, said = FakeClock(), list[str]()
    frontier = await place.open(clock)
    await one_day(frontier, clock, 1)
    await frontier.put("books-1", [make_task(10_000 + number, f"{number}.test") for number in range(5000)])
    assert not await frontier.delete_crawl("books-1", seconds=0.0)
    await Clearing(frontier, inbox=no_inbox, say=said.append, clock=clock).look()
    assert await frontier.half_deleted() == []
    await frontier.close()


async def test_a_crawl_whose_inbox_has_entries_stays(place: Place) -> None:
    class Waiting(NoInbox):
        async def count(self, crawls: object) -> dict[str, int]:
            return {"books-3": 7}

    @asynccontextmanager
    async def waiting() -> AsyncIterator[Inbox]:
        yield Waiting()

    clock = FakeClock()
    frontier = await place.open(clock)
    for day in range(1, 15):
        await one_day(frontier, clock, day)
        clock.advance(DAY)
    await Clearing(frontier, inbox=waiting, say=lambda _: None, clock=clock).look()
    assert "books-3" in [crawl.id for crawl in await frontier.crawls()]
    assert "books-4" not in [crawl.id for crawl in await frontier.crawls()]
    await frontier.close()


async def test_an_entry_that_comes_while_its_crawl_is_removed_stays(place: Place, tmp_path: Path) -> None:
    base = tmp_path / "inbox"

    class Late(FolderInbox):
        async def count(self, names: Sequence[str]) -> dict[str, int]:
            found = await super().count(names)
            (base / "books-1").mkdir(exist_ok=True, parents=True)
            (base / "books-1" / "late.txt").write_text("https://a.test/\n")
            return found

    @asynccontextmanager
    async def late() -> AsyncIterator[Inbox]:
        yield Late(base)

    clock = FakeClock()
    frontier = await place.open(clock)
    for day in range(1, 12):
        await one_day(frontier, clock, day)
    await Clearing(frontier, inbox=late, say=lambda _: None, clock=clock).look()
    assert "books-1" not in [crawl.id for crawl in await frontier.crawls()]
    assert await FolderInbox(base).names() == ["books-1"]
    await frontier.close()
