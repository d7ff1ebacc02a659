"""The take-over of a queue in its steps: what happens when scrapy-redis still works on it, and what later runs find."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from left_by_scrapy_redis import FILTER, QUEUE, Leftovers, as_json
from scrapy import Request

from shoal.crawl.opening import Places, store_at
from shoal.crawl.record import record_of
from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.rules.tasks import KNOWN_KEYS
from shoal.model import Budgets, Crawl, CrawlState
from shoal.scrapy.crawl import ScrapyCrawl, join
from shoal.scrapy.importing import READ_AT_ONCE, ImportOptions, ImportReport, QueueSource, SourceKeys, import_queue
from shoal.settings.table import Settings
from shoal.testing.servers.redis_server import RedisServer

KEYS = SourceKeys(queue=QUEUE, filter=FILTER, start="pages:start_urls")
SETTINGS = Settings(rate="unlimited", per_host=100)
LATE = Request("http://a.test/late")
READ = "reading the filter"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.kill()


@pytest.fixture
def left(redis: RedisServer) -> Iterator[Leftovers]:
    left = Leftovers(redis)
    yield left
    left.close()


@pytest.fixture
async def frontier(redis: RedisServer) -> AsyncIterator[Frontier]:
    frontier = await RedisFrontier.open(redis.url)
    yield frontier
    await frontier.close()


def waiting(number: int = 3) -> list[Request]:
    return [Request(f"http://a.test/{index}") for index in range(number)]


def wanted(redis: RedisServer, **changes: object) -> ImportOptions:
    crawl = ScrapyCrawl(
        spider="pages", places=Places(frontier=redis.url), settings=SETTINGS, arguments={}, requests_at_once=4
    )
    return msgspec.structs.replace(ImportOptions(crawl=crawl), **changes)


async def taken(
    want: ImportOptions, redis: RedisServer, frontier: Frontier, *, show: Callable[[str], None] = lambda _: None
) -> ImportReport:
    source = QueueSource(redis.url, KEYS)
    try:
        return await import_queue(want, source=source, frontier=frontier, show=lambda text: show(text()))
    finally:
        await source.close()


@pytest.mark.parametrize("pushed_at", ["pages-1", READ])
async def test_a_request_that_comes_in_meanwhile_is_noticed_and_taken_by_the_next_run(
    redis: RedisServer, left: Leftovers, frontier: Frontier, pushed_at: str
) -> None:
    left.push(*map(as_json, waiting()))
    left.know(*waiting(), Request("http://a.test/old"))
    has_pushed = False

    def push_once(line: str) -> None:
        """As scrapy-redis does: first the filter, then the queue."""
        nonlocal has_pushed
        left.know(LATE)
        if line.startswith(pushed_at) and not has_pushed:
            has_pushed = True
            left.push(as_json(LATE))

    report = await taken(wanted(redis), redis, frontier, show=push_once)
    (problem,) = report.problems
    assert problem.startswith("pages:requests has changed meanwhile (3 requests, now 4): stop all scrapy-redis")
    # No key at all: that of the late request may be among them.
    assert (report.requests, report.keys) == (3, 0)
    report = await taken(wanted(redis), redis, frontier)
    assert (report.requests, report.new, report.keys, report.problems) == (4, 1, 5, [])


async def test_a_request_that_comes_in_while_the_filter_is_marked_is_taken_by_the_next_run(
    redis: RedisServer, left: Leftovers, frontier: Frontier
) -> None:
    left.push(*map(as_json, waiting()))
    left.know(*waiting(), Request("http://a.test/old"))
    has_read = False

    def push_at_the_end(line: str) -> None:
        nonlocal has_read
        if has_read and line.startswith("pages-1: 4 of 4 keys"):
            left.know(LATE)
            left.push(as_json(LATE))
        has_read = has_read or line.startswith(READ)

    report = await taken(wanted(redis), redis, frontier, show=push_at_the_end)
    assert (report.new_keys, len(report.problems)) == (1, 1)
    report = await taken(wanted(redis), redis, frontier)
    assert (report.requests, report.new, report.problems) == (4, 1, [])


async def test_a_queue_that_changed_is_not_removed(redis: RedisServer, left: Leftovers, frontier: Frontier) -> None:
    left.push(*map(as_json, waiting()))
    left.know(*waiting())

    def learn(line: str) -> None:
        if line.startswith(READ):
            left.know(LATE)

    report = await taken(wanted(redis, removes=True), redis, frontier, show=learn)
    assert (report.removed, len(report.problems)) == (False, 1)
    assert redis.call("EXISTS", QUEUE, FILTER) == 2
    assert (await taken(wanted(redis, removes=True), redis, frontier)).removed
    assert redis.call("EXISTS", QUEUE, FILTER) == 0


async def test_a_long_queue_is_read_to_its_end_the_oldest_first(
    redis: RedisServer, left: Leftovers, frontier: Frontier
) -> None:
    requests = waiting(2 * READ_AT_ONCE + 7)
    left.push(*map(as_json, requests))
    lines: list[str] = []
    report = await taken(wanted(redis), redis, frontier, show=lines.append)
    assert (report.requests, report.fingerprints) == (len(requests), "project")
    assert "pages-1: 400 of 407 requests" in lines
    crawl = record_of((await frontier.crawls())[0])
    assert crawl.fingerprints == "project"
    leases = (await frontier.lease(["pages-1"], 3, worker="w", seconds=10.0, horizon=0.0)).leases
    assert [lease.task.url for lease in leases] == ["http://a.test/0", "http://a.test/1", "http://a.test/2"]


async def test_requests_beyond_the_budget_of_a_crawl_are_named_and_its_filter_is_left(
    redis: RedisServer, left: Leftovers, frontier: Frontier
) -> None:
    left.push(*map(as_json, waiting()))
    left.know(*waiting())
    await taken(wanted(redis, form="scrapy-redis-0.8", skips_unreadable=True), redis, frontier)
    former = (await frontier.crawls())[0]
    await frontier.open_crawl(msgspec.structs.replace(former, budgets=Budgets(pages=3)))
    left.know(LATE)
    left.push(as_json(LATE))
    report = await taken(wanted(redis), redis, frontier)
    assert (report.requests, report.refused, report.keys) == (3, 1, 0)
    assert "1 request did not fit the limits of pages-1, and the filter was not taken over" in report.problems[0]


async def test_members_of_a_filter_that_are_no_fingerprints_are_counted(
    redis: RedisServer, left: Leftovers, frontier: Frontier
) -> None:
    left.know(LATE)
    redis.call("SADD", FILTER, "http://a.test/", "abc")
    report = await taken(wanted(redis), redis, frontier)
    assert (report.keys, report.new_keys) == (1, 1)
    assert report.problems[0].startswith("2 members of pages:dupefilter are no fingerprints")
    assert (await frontier.progress("pages-1")).notes == {KNOWN_KEYS: 1}


async def test_a_crawl_waits_for_its_spider_and_keeps_its_fingerprints_when_it_is_joined(
    redis: RedisServer, left: Leftovers, frontier: Frontier, tmp_path: Path
) -> None:
    left.know(LATE)
    await taken(wanted(redis, form="scrapy-redis-0.6"), redis, frontier)
    assert not (await frontier.lease(["pages-1"], 3, worker="w", seconds=10.0, horizon=0.0)).finished
    crawl = msgspec.structs.replace(
        wanted(redis).crawl, places=Places(frontier=redis.url, store=str(tmp_path / "shoal.db"))
    )
    made: list[str] = []

    async def make_store(store: str) -> None:
        """The first process makes it: others may join as soon as the crawl names it."""
        assert record_of((await frontier.crawls())[0]).results.store is None
        async with store_at(store):
            made.append(store)

    for _ in range(2):
        joined = await join(crawl, frontier=frontier, make_store=make_store, say=print)
        assert (joined.crawl.id, joined.is_new) == ("pages-1", False)
        assert record_of(joined.crawl).fingerprints == "scrapy-redis-0.6"
    assert made == [crawl.places.store]


async def test_a_crawl_with_fingerprints_of_a_newer_shoal_is_refused(redis: RedisServer, frontier: Frontier) -> None:
    crawl = Crawl(
        id="pages-1", spider="pages", settings={"settings": {}, "spider": "scrapy:pages", "fingerprints": "x"}
    )
    await frontier.open_crawl(crawl)
    await frontier.set_state("pages-1", CrawlState.PAUSED)
    with pytest.raises(UsageError, match="fingerprints called 'x', which this shoal lacks"):
        await join(wanted(redis).crawl, frontier=frontier, make_store=no_store, say=print)


async def no_store(_: str) -> None:
    pass
