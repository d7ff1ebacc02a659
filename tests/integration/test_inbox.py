"""URLs pushed with LPUSH: taken once, kept when the taker dies, put as tasks or told of as dead letters."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import Folder

from shoal.crawl.inbox import BATCH, Listener, NoInbox, request_of
from shoal.crawl.record import CrawlRecord
from shoal.crawl.sources import LONGEST_LINE
from shoal.errors import UsageError
from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.redis.inbox import RedisInbox, inbox_keys
from shoal.frontier.rules.constants import MAX_TAKEN_BYTES
from shoal.model import Crawl, CrawlState, DeadFilter
from shoal.run.intakes import intake_of
from shoal.settings.table import Settings
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import eventually

CRAWL = "books-1"
PRODUCTS = 5
INBOX = f"shoal:inbox:{CRAWL}"
SPIDER = """
from shoal import Spider

class Books(Spider):
    start = ["{url}?start"]
    rate = "unlimited"
    settings = {{"allow_private": True}}

    def parse(self, page):
        return None
"""


@pytest.fixture
async def frontier(redis: RedisServer) -> AsyncIterator[RedisFrontier]:
    frontier = await RedisFrontier.open(redis.url)
    yield frontier
    await frontier.close()


@pytest.fixture
async def inbox(redis: RedisServer) -> AsyncIterator[RedisInbox]:
    inbox = RedisInbox(redis.url, taker_seconds=60.0)
    yield inbox
    await inbox.close()


async def opened_crawl(frontier: RedisFrontier, **settings: Any) -> Crawl:
    record = CrawlRecord(settings=Settings(**settings), start_lanes=["example.com"])
    kept = msgspec.to_builtins(record)
    return await frontier.open_crawl(Crawl(id=CRAWL, spider="books", settings=kept, needs_rules=True))


def listener_for(inbox: RedisInbox, frontier: RedisFrontier) -> Listener:
    return Listener(inbox, frontier=frontier, intake_of=intake_of, say=print)


async def test_pushed_urls_and_objects_become_tasks_oldest_first(
    redis: RedisServer, inbox: RedisInbox, frontier: RedisFrontier
) -> None:
    crawl = await opened_crawl(frontier)
    entry = {"url": "https://b.test/2", "handler": "book", "meta": {"n": 1}, "priority": 3, "depth": 2}
    redis.call("LPUSH", INBOX, "https://a.test/1 ", json.dumps(entry))
    redis.call("LPUSH", INBOX, json.dumps({"url": "https://c.test/", "method": "post", "headers": {"x": "y"}}))
    assert await listener_for(inbox, frontier).take_in([crawl]) == 3
    assert redis.call("EXISTS", *inbox_keys(CRAWL)) == 0
    tasks = await waiting_tasks(frontier, 3)
    assert list(tasks) == ["https://a.test/1", "https://b.test/2", "https://c.test/"]
    book = tasks["https://b.test/2"]
    assert (book.handler, book.meta, book.priority, book.depth) == ("book", {"n": 1}, 3, 2)
    assert (tasks["https://c.test/"].method, tasks["https://c.test/"].headers) == ("POST", {"x": "y"})


async def test_a_crawl_whose_urls_cannot_be_taken_in_is_told_of_once_and_holds_up_no_other(
    redis: RedisServer, inbox: RedisInbox, frontier: RedisFrontier
) -> None:
    good = await opened_crawl(frontier)
    await frontier.open_crawl(msgspec.structs.replace(good, id="a-bad-one"))
    await frontier.open_crawl(Crawl(id="of-another-program", spider="s"))
    for crawl in ("a-bad-one", "of-another-program", CRAWL):
        redis.call("LPUSH", f"shoal:inbox:{crawl}", "https://a.test/")
    said: list[str] = []

    def intake(crawl: Crawl) -> Any:
        if crawl.id == "a-bad-one":
            raise UsageError("no such pool")
        return intake_of(crawl)

    listener = Listener(inbox, frontier=frontier, intake_of=intake, say=said.append)
    listening = asyncio.create_task(listener.listen_to_all())
    for number in (1, 2):  # the second one comes in a later look

        async def is_put(number: int = number) -> bool:
            return (await frontier.progress(CRAWL)).queued == number

        await eventually(is_put)
        redis.call("LPUSH", INBOX, "https://a.test/2")
    listening.cancel()
    assert said == ["URLs pushed into a-bad-one are not taken in: no such pool"]
    assert await inbox.count(["a-bad-one", "of-another-program"]) == {"a-bad-one": 1, "of-another-program": 1}


async def test_nothing_is_looked_for_where_no_program_can_push(frontier: RedisFrontier) -> None:
    async with asyncio.timeout(10):
        await Listener(NoInbox(), frontier=frontier, intake_of=intake_of, say=print).listen_to_all()


async def waiting_tasks(frontier: RedisFrontier, count: int) -> dict[str, Any]:
    batch = await frontier.lease([CRAWL], count, worker="w", seconds=60, horizon=1.0)
    return {lease.task.url: lease.task for lease in sorted(batch.leases, key=lambda lease: lease.task.url)}


async def test_an_entry_names_the_kind_of_workers_that_do_it(
    redis: RedisServer, inbox: RedisInbox, frontier: RedisFrontier
) -> None:
    crawl = await opened_crawl(frontier, kind="eu")
    for entry in ({"url": "https://a.test/", "kind": "browser"}, {"url": "https://a.test/2"}):
        redis.call("LPUSH", INBOX, json.dumps(entry))
    redis.call("LPUSH", INBOX, json.dumps({"url": "https://a.test/3", "kind": "No Kind"}))
    await listener_for(inbox, frontier).take_in([crawl])
    assert (await frontier.progress(CRAWL)).kinds == {"http": 0, "browser": 1, "eu": 1}
    (letter,) = await frontier.dead(CRAWL, DeadFilter())
    assert "'No Kind' is not a kind" in letter.reason


async def test_an_entry_pushed_again_is_known_already_unless_it_says_otherwise(
    redis: RedisServer, inbox: RedisInbox, frontier: RedisFrontier
) -> None:
    crawl = await opened_crawl(frontier)
    listener = listener_for(inbox, frontier)
    for _ in range(2):
        redis.call("LPUSH", INBOX, "https://a.test/", json.dumps({"url": "https://a.test/", "dedup": False}))
        await listener.take_in([crawl])
    progress = await frontier.progress(CRAWL)
    assert (progress.queued, progress.duplicates) == (3, 1)


async def test_what_a_dead_taker_took_goes_to_the_next_one(redis: RedisServer, inbox: RedisInbox) -> None:
    other = RedisInbox(redis.url, taker_seconds=60.0)
    try:
        redis.call("LPUSH", INBOX, "https://a.test/", "https://b.test/", "https://c.test/")
        taken = await inbox.take(CRAWL, 2)
        assert taken == [b"https://a.test/", b"https://b.test/"]
        assert await inbox.take(CRAWL, 2) == taken
        assert await other.take(CRAWL, 2) == []
        assert await other.waiting([CRAWL, "another"]) == [CRAWL]
        _, _, taker = inbox_keys(CRAWL)
        assert 0 < redis.call("PTTL", taker) <= 60_000
        redis.call("DEL", taker)  # as if its time were over
        assert await other.take(CRAWL, 2) == taken
        await inbox.forget(CRAWL)
        assert await other.take(CRAWL, 2) == taken
        await other.forget(CRAWL)
        assert await other.take(CRAWL, 2) == [b"https://c.test/"]
    finally:
        await other.close()


async def test_of_large_entries_few_are_taken_at_once(redis: RedisServer, inbox: RedisInbox) -> None:
    redis.call("LPUSH", INBOX, *(f"{number}{'a' * (MAX_TAKEN_BYTES // 2)}" for number in range(5)))
    assert [entry[:1] for entry in await inbox.take(CRAWL, 500)] == [b"0", b"1"]
    await inbox.forget(CRAWL)
    assert [entry[:1] for entry in await inbox.take(CRAWL, 500)] == [b"2", b"3"]


async def test_entries_are_counted_also_those_that_a_taker_holds(redis: RedisServer, inbox: RedisInbox) -> None:
    redis.call("LPUSH", INBOX, "https://a.test/", "https://b.test/", "https://c.test/")
    await inbox.take(CRAWL, 2)
    assert await inbox.count([CRAWL, "another"]) == {CRAWL: 3}
    await inbox.forget(CRAWL)
    assert await inbox.count([CRAWL]) == {CRAWL: 1}
    await inbox.take(CRAWL, 2)  # the last one: nothing is left in the list itself
    assert (await inbox.names(), await inbox.count([CRAWL])) == ([CRAWL], {CRAWL: 1})
    assert await NoInbox().count([CRAWL]) == {}


async def test_two_parts_of_a_process_do_not_forget_what_the_other_has_taken(
    redis: RedisServer, inbox: RedisInbox, frontier: RedisFrontier
) -> None:
    crawl = await opened_crawl(frontier)
    listener = listener_for(inbox, frontier)
    redis.call("LPUSH", INBOX, *(f"https://a.test/{number}" for number in range(4 * BATCH)))
    taken = await asyncio.gather(*(listener.take_in([crawl]) for _ in range(3)))
    assert sum(taken) == (await frontier.progress(CRAWL)).queued == 4 * BATCH


async def test_what_another_process_holds_is_waited_for_at_the_end(
    redis: RedisServer, inbox: RedisInbox, frontier: RedisFrontier
) -> None:
    await opened_crawl(frontier)
    await waiting_tasks(frontier, 1)
    (crawl,) = await frontier.crawls()
    other = RedisInbox(redis.url, taker_seconds=60.0)
    try:
        redis.call("LPUSH", INBOX, "https://a.test/")
        await other.take(CRAWL, 1)
        ending = asyncio.create_task(listener_for(inbox, frontier).take_in_all(crawl, stop=asyncio.Event()))
        await eventually(lambda: not ending.done())
        redis.call("DEL", inbox_keys(CRAWL)[2])  # as if its time were over
        await ending
        assert (await frontier.progress(CRAWL)).queued == 1
    finally:
        await other.close()


async def test_feeding_pauses_above_max_pending_and_resumes(
    redis: RedisServer, inbox: RedisInbox, frontier: RedisFrontier
) -> None:
    crawl = await opened_crawl(frontier, max_pending=BATCH)
    total = 2 * BATCH + 10
    redis.call("LPUSH", INBOX, *(f"https://a.test/{number}" for number in range(total)))
    listener = listener_for(inbox, frontier)
    assert await listener.take_in([crawl]) == BATCH
    assert await listener.take_in([crawl]) == 0
    assert redis.call("LLEN", INBOX) == total - BATCH
    await frontier.open_crawl(crawl)
    raised = await opened_crawl(frontier, max_pending=10**6)
    assert await listener.take_in([raised]) == total - BATCH
    assert (await frontier.progress(CRAWL)).queued == total


async def test_a_cancelled_crawl_leaves_its_inbox_alone_and_a_finished_one_runs_again(
    redis: RedisServer, inbox: RedisInbox, frontier: RedisFrontier
) -> None:
    await opened_crawl(frontier)
    await waiting_tasks(frontier, 1)
    (crawl,) = await frontier.crawls()
    assert crawl.state is CrawlState.FINISHED
    redis.call("LPUSH", INBOX, "https://a.test/")
    assert await listener_for(inbox, frontier).take_in([crawl]) == 1
    assert (await frontier.progress(CRAWL)).state is CrawlState.RUNNING
    await frontier.set_state(CRAWL, CrawlState.CANCELLED)
    redis.call("LPUSH", INBOX, "https://b.test/")
    # Also by one that knew the crawl before.
    assert await listener_for(inbox, frontier).take_in([crawl]) == 0
    assert redis.call("LLEN", INBOX) == 1


async def test_bad_entries_are_dead_letters_at_once_and_leave_a_finished_crawl_finished(
    redis: RedisServer, inbox: RedisInbox, frontier: RedisFrontier
) -> None:
    await opened_crawl(frontier)
    await waiting_tasks(frontier, 1)
    (crawl,) = await frontier.crawls()
    listener = listener_for(inbox, frontier)
    for _ in range(2):
        redis.call("LPUSH", INBOX, "{broken", "ftp://a.test/")
        assert await listener.take_in([crawl]) == 2
    progress = await frontier.progress(CRAWL)
    assert (progress.state, progress.dead, progress.duplicates) == (CrawlState.FINISHED, 2, 2)
    assert progress.outcomes == {"inbox": 2}
    assert await frontier.requeue_dead(CRAWL, DeadFilter()) == 0
    assert {letter.task.url for letter in await frontier.dead(CRAWL, DeadFilter(reason="inbox: "))} == {
        "{broken",
        "ftp://a.test/",
    }


async def test_a_key_of_another_kind_is_told_of_and_left_alone(
    redis: RedisServer, inbox: RedisInbox, caplog: pytest.LogCaptureFixture
) -> None:
    redis.call("SADD", INBOX, "https://a.test/")
    for _ in range(2):
        assert await inbox.waiting([CRAWL]) == []
    assert [record.message for record in caplog.records] == [
        f"{INBOX} is a set, not a list: DEL it and push with LPUSH"
    ]


async def test_a_frontier_without_an_inbox_has_nothing_waiting() -> None:
    inbox = NoInbox()
    assert (await inbox.waiting(["a"]), await inbox.take("a", 1)) == ([], [])


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (b"{", "truncated"),
        (b'{"url": 3}', "Expected `str`, got `int`"),
        (b'{"handler": "book"}', "missing required field `url`"),
        (b'{"url": "https://a.test/", "prority": 1}', "unknown field `prority`"),
        (b'{"url": "https://a.test/", "handler": "@sitemap"}', "'@sitemap' is not the name of a handler"),
        (b'{"url": "https://a.test/", "handler": "__init__"}', "'__init__' is not the name of a handler"),
        (b'{"url": "https://a.test/", "priority": 99999999999}', "<= 4194303"),
        (b"https://a.test/\xff", "utf-8"),
        (b'{"url": "https://a.test/", "delay": -1}', ">= 0"),
        (b'{"url": "https://a.test/", "delay": "soon"}', "duration 'soon' is not understood"),
        (b'{"url": "https://a.test/", "delay": "nan"}', "a delay is between 0 and 3650 days"),
        (b'{"url": "https://a.test/", "max_attempts": 0}', ">= 1"),
        (b'{"url": "https://a.test/", "revisit": "often"}', "duration 'often' is not understood"),
        (b'{"url": "https://a.test/", "body": "a", "json": 1}', "it has body and json"),
        (b'{"url": "https://a.test/", "delay": ""}', "this text is empty"),
        (b'{"url": "https://a.test/", "body": "' + b"a" * LONGEST_LINE, "it is longer than 1,048,576 bytes"),
    ],
)
def test_an_entry_that_is_no_request_is_refused_with_the_reason(entry: bytes, reason: str) -> None:
    with pytest.raises((ValueError, UsageError), match=re.escape(reason)):
        request_of(entry)


def test_an_entry_may_wait_and_has_what_every_request_has() -> None:
    given = {"url": "https://a.test/", "delay": "10m", "max_attempts": 9, "json": {"a": 1}, "revisit": "24h"}
    request = request_of(json.dumps(given).encode())
    assert (request.delay, request.max_attempts, request.json, request.revisit) == (600.0, 9, {"a": 1}, "24h")
    assert request_of(b'{"url": "https://a.test/", "delay": 90}').delay == 90.0
    # Editors of Windows begin a file with a mark.
    assert request_of(b"\xef\xbb\xbfhttps://a.test/").url == "https://a.test/"


async def test_entries_under_a_spiders_name_go_to_its_newest_unfinished_crawl(
    redis: RedisServer, inbox: RedisInbox, frontier: RedisFrontier
) -> None:
    first = await opened_crawl(frontier)
    second = await frontier.open_crawl(msgspec.structs.replace(first, id="books-2", created=first.created + 1))
    other = await frontier.open_crawl(msgspec.structs.replace(first, id="shop-1", spider="books-1"))
    ended = msgspec.structs.replace(second, id="books-3", state=CrawlState.FINISHED)
    redis.call("LPUSH", "shoal:inbox:books", "https://a.test/1", '{"url": "https://a.test/2", "delay": 60}')
    # The name of a crawl and of a spider: the crawl's.
    redis.call("LPUSH", INBOX, "https://a.test/3")
    assert await inbox.names() == ["books", "books-1"]
    # A process that knows only the older one, as the newer is of another file, leaves the spider's alone.
    listener = listener_for(inbox, frontier)
    assert (await listener.take_in([first]), await listener.waiting(first)) == (1, 0)
    assert await listener.take_in([ended, other, second, first]) == 2
    counts = {crawl.id: await frontier.progress(crawl.id) for crawl in (first, second, other)}
    assert [(one.queued, one.delayed) for one in counts.values()] == [(1, 0), (1, 1), (0, 0)]
    assert (await inbox.names(), redis.call("KEYS", "shoal:*inbox*")) == ([], [])


async def test_one_of_several_processes_begins_the_crawl_of_what_was_pushed(
    redis: RedisServer, inbox: RedisInbox, frontier: RedisFrontier
) -> None:
    other = RedisInbox(redis.url, taker_seconds=60.0)
    redis.call("LPUSH", "shoal:inbox:books", *(f"https://a.test/{number}" for number in range(BATCH + 1)))
    listeners = [listener_for(one, frontier) for one in (inbox, other)]
    began: list[str] = []

    async def begin() -> Crawl:
        began.append(CRAWL)
        assert await listeners[1].begin_for("books", begin) is None
        return await opened_crawl(frontier)

    crawl = await listeners[0].begin_for("books", begin)
    assert crawl is not None
    assert began == [CRAWL]
    assert (await frontier.progress(CRAWL)).queued == BATCH
    assert await listeners[1].take_in([crawl]) == 1
    await other.close()


async def test_what_was_pushed_waits_where_no_crawl_can_begin(
    redis: RedisServer, inbox: RedisInbox, frontier: RedisFrontier
) -> None:
    redis.call("LPUSH", "shoal:inbox:books", "https://a.test/1")

    async def refuse() -> Crawl:
        raise UsageError("no such pool")

    listener, other = listener_for(inbox, frontier), RedisInbox(redis.url)
    with pytest.raises(UsageError, match="no such pool"):
        await listener.begin_for("books", refuse)
    assert await inbox.count(["books"]) == {"books": 1}
    # Another process may be able to: it need not wait until the first one is silent.
    assert await listener_for(other, frontier).begin_for("books", lambda: opened_crawl(frontier)) is not None
    assert (await frontier.progress(CRAWL)).queued == 1
    await other.close()


async def finished_with(frontier: RedisFrontier, **counts: int) -> None:
    """Wait until the crawl is finished with these counters."""

    async def is_so() -> bool:
        progress = await frontier.progress(CRAWL)
        return progress.is_finished and all(getattr(progress, name) == count for name, count in counts.items())

    await eventually(is_so, pause=0.05)


async def test_bad_entries_end_as_dead_letters_and_a_staying_worker_takes_up_a_finished_crawl(
    redis: RedisServer, frontier: RedisFrontier, site: SiteProcess, tmp_path: Path
) -> None:
    folder = Folder(tmp_path)
    spider = "books.py"
    (tmp_path / spider).write_text(SPIDER.format(url=site.url))
    redis.call("LPUSH", INBOX, f"{site.url}?first", "ftp://a.test/", "{broken", "no url")
    # Three of five entries are bad: more than half of what the crawl had to do has failed.
    await asyncio.to_thread(folder.run, "run", spider, "--frontier", redis.url, code=1)
    await finished_with(frontier, done=2, dead=3)
    letters = await frontier.dead(CRAWL, DeadFilter(reason="inbox: "))
    assert {letter.task.url: letter.reason.split(":")[1].strip()[:11] for letter in letters} == {
        "ftp://a.test/": "scheme",
        "{broken": "JSON is mal",
        "no url": "invalid_url",
    }
    with folder.start("worker", spider, "--frontier", redis.url) as worker:
        redis.call("LPUSH", INBOX, f"{site.url}?second")
        await finished_with(frontier, done=3, dead=3)
        worker.terminate()
        assert await asyncio.to_thread(worker.wait, 20) == 0
        worker.communicate()
    assert redis.call("EXISTS", *inbox_keys(CRAWL)) == 0
