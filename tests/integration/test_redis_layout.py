"""Crawls on a Redis server that a newer shoal wrote: refused with one line, and left as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from command_line import Folder

from shoal.crawl.beginning import discard
from shoal.crawl.opening import Places
from shoal.crawl.record import CrawlRecord
from shoal.errors import UsageError
from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.redis.inbox import inbox_keys
from shoal.frontier.redis.scripts import LAYOUT_VERSION
from shoal.frontier.redis.shards import shards_of
from shoal.model import Crawl, CrawlState, DeadFilter
from shoal.settings.table import Settings
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.memory_store import MemoryStore
from shoal.testing.servers.redis_server import RedisServer

CRAWL = "books-1"
NONE = r"the record of crawl 'books-1' at redis://127\.0\.0\.1:\d+.* cannot be read \(its layout version is missing"
NEWER = r"crawl 'books-1' at redis://127\.0\.0\.1:\d+.* was written by a newer shoal \(layout 99, .* upgrade shoal"


@pytest.fixture(params=[1, 3], ids=["one shard", "three shards"])
async def crawl_of(redis: RedisServer, request: pytest.FixtureRequest) -> AsyncIterator[Callable[[int | None], str]]:
    """A crawl with a task in it, as if a shoal of this layout version had written it; gives the server's URL."""
    url = redis.url if request.param == 1 else f"{redis.url}?shards={request.param}"
    frontier = await RedisFrontier.open(url)
    await frontier.open_crawl(Crawl(id=CRAWL, spider="books"))
    await frontier.put(CRAWL, [make_task(1)])
    await frontier.close()

    def rewrite(version: int | None) -> str:
        for shard in shards_of(CRAWL, request.param):
            assert redis.call("HGET", f"{shard.prefix}crawl", "layout") == str(LAYOUT_VERSION).encode()
            if version is None:
                redis.call("HDEL", f"{shard.prefix}crawl", "layout")
            else:
                redis.call("HSET", f"{shard.prefix}crawl", "layout", version)
        return url

    return rewrite


def contents(server: RedisServer) -> dict[bytes, bytes]:
    return {key: server.call("DUMP", key) for key in server.call("KEYS", "*")}


async def calls(frontier: RedisFrontier) -> AsyncIterator[Awaitable[object]]:
    """What is done with a crawl, by people and by workers."""
    yield frontier.open_crawl(Crawl(id=CRAWL, spider="books"))
    yield frontier.progress(CRAWL)
    yield frontier.put(CRAWL, [make_task(2)])
    yield frontier.bury(CRAWL, [(make_task(2), "bad")])
    yield frontier.lease([CRAWL], 1, worker="w", seconds=60.0, horizon=0.0)
    yield frontier.set_state(CRAWL, CrawlState.PAUSED)
    yield frontier.dead(CRAWL, DeadFilter())
    yield frontier.look_up(CRAWL, 1)


@pytest.mark.parametrize(("version", "line"), [(None, NONE), (0, NONE), (2, NEWER.replace("99", "2")), (99, NEWER)])
async def test_a_crawl_of_another_layout_is_refused_by_every_call_and_left_alone(
    redis: RedisServer, crawl_of: Callable[[int | None], str], version: int | None, line: str
) -> None:
    url = crawl_of(version)
    before = contents(redis)
    frontier = await RedisFrontier.open(url)
    async for call in calls(frontier):
        with pytest.raises(UsageError, match=line):
            await call
    assert await frontier.evict("w") == 0
    assert contents(redis) == before
    await frontier.close()


async def test_a_crawl_of_a_newer_layout_is_not_deleted(
    redis: RedisServer, crawl_of: Callable[[int | None], str]
) -> None:
    frontier = await RedisFrontier.open(crawl_of(99))
    before = contents(redis)
    with pytest.raises(UsageError, match=NEWER):
        await frontier.delete_crawl(CRAWL)
    assert contents(redis) == before
    await frontier.close()


async def test_a_fresh_start_that_a_newer_layout_refuses_keeps_what_was_pushed(
    redis: RedisServer, crawl_of: Callable[[int | None], str]
) -> None:
    frontier = await RedisFrontier.open(crawl_of(99))
    redis.call("LPUSH", inbox_keys(CRAWL)[0], "https://a.test/")
    (crawl,) = await frontier.crawls()
    with pytest.raises(UsageError, match=NEWER):
        await discard(
            crawl, places=Places(frontier=redis.url, store="shoal.db"), frontier=frontier, store=MemoryStore()
        )
    assert redis.call("LLEN", inbox_keys(CRAWL)[0]) == 1
    await frontier.close()


async def test_crawls_beside_one_that_cannot_even_be_read_are_listed(
    redis: RedisServer, crawl_of: Callable[[int | None], str]
) -> None:
    frontier = await RedisFrontier.open(crawl_of(99))
    await frontier.open_crawl(Crawl(id="news-1", spider="news"))
    for key in redis.call("KEYS", "shoal:{*}:books-1:crawl"):
        redis.call("HDEL", key.decode(), "max_cost")
    news, books = await frontier.crawls()
    assert (news.id, news.refusal) == ("news-1", "")
    assert (books.id, books.spider) == (CRAWL, "books")
    assert "crawl 'books-1'" in books.refusal
    assert "upgrade shoal" in books.refusal
    await frontier.close()


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
async def test_status_shows_the_other_crawls_and_tells_of_it(
    crawl_of: Callable[[int | None], str], redis: RedisServer, tmp_path: Path, options: list[str]
) -> None:
    frontier = await RedisFrontier.open(crawl_of(99))
    settings = msgspec.to_builtins(CrawlRecord(settings=Settings()))
    for name in ("news-1", "news-2"):
        await frontier.open_crawl(Crawl(id=name, spider="news", settings=settings))
    await frontier.close()
    done = Folder(tmp_path).run("status", "--frontier", redis.url, *options)
    assert ("news-1" in done.stdout, "news-2" in done.stdout, CRAWL in done.stdout) == (True, True, False)
    # Another line may say that the store of the others is not here.
    assert ["crawl 'books-1'" in line for line in done.stderr.splitlines()].count(True) == 1


async def test_status_says_it_in_one_line(
    crawl_of: Callable[[int | None], str], redis: RedisServer, tmp_path: Path
) -> None:
    crawl_of(99)
    done = Folder(tmp_path).run("status", "--frontier", redis.url, code=2)
    newer = f"was written by a newer shoal (layout 99, this one has {LAYOUT_VERSION}): upgrade shoal"
    assert newer in done.stderr
    assert done.stderr.count("\n") == 1
