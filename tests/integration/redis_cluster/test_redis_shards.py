"""A crawl in several shards of one server: where they lie, and what they are together."""

from __future__ import annotations

import pytest
from sharded_crawl import CRAWL, SHARDS, lanes_apart, opened, sharded, take

from shoal.errors import UsageError
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.frontier.redis.shards import prefix_of, shard_of
from shoal.model import Crawl, CrawlState, DeadFilter, Retry, TaskState
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.servers.redis_server import RedisServer


async def test_a_crawl_keeps_the_number_of_shards_it_was_made_with(redis: RedisServer, frontier: Frontier) -> None:
    a, b = lanes_apart(2)
    await frontier.put(CRAWL, [make_task(1, a), make_task(2, b)])
    for url in (redis.url, sharded(redis.url, 3)):
        other = await opened(url)
        assert (await other.progress(CRAWL)).queued == 2
        assert (await other.put(CRAWL, [make_task(1, a), make_task(2, b)])).duplicates == 2
        assert {lane.lane for lane in await other.lanes(CRAWL)} == {a, b}
        await other.close()
    reader = await open_frontier(redis.url)
    assert sorted(lease.task.key for lease in await take(reader)) == [1, 2]
    assert (await reader.look_up(CRAWL, 2)).state == TaskState.LEASED
    await reader.set_state(CRAWL, CrawlState.PAUSED)
    assert (await frontier.progress(CRAWL)).state == CrawlState.PAUSED
    await reader.close()


async def test_a_crawl_in_one_shard_stays_there(redis: RedisServer) -> None:
    whole = await opened(redis.url)
    await whole.put(CRAWL, [make_task(number, f"{number}.test") for number in range(20)])
    assert redis.call("EXISTS", "shoal:shards") == 0
    other = await opened(sharded(redis.url))
    assert (await other.progress(CRAWL)).queued == 20
    assert len(await take(other)) == 20
    await other.close()
    await whole.close()


async def test_another_crawl_of_the_same_name_may_lie_elsewhere(redis: RedisServer, frontier: Frontier) -> None:
    await frontier.put(CRAWL, [make_task(1)])
    other = await open_frontier(redis.url)
    await other.delete_crawl(CRAWL)
    assert [key for key in redis.call("KEYS", "*") if b"books" in key] == []
    await other.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0))
    await other.put(CRAWL, [make_task(5)])
    assert [lease.task.key for lease in await take(frontier)] == [5]
    await other.close()


async def test_a_half_deleted_crawl_is_deleted_before_it_is_opened_again(
    redis: RedisServer, frontier: Frontier
) -> None:
    await frontier.put(CRAWL, [make_task(number, f"{number}.test") for number in range(50)])
    redis.call("HSET", "shoal:shards", CRAWL, -SHARDS)
    redis.call("DEL", *(key.decode() for key in redis.call("KEYS", prefix_of(CRAWL, 0, of=SHARDS) + "*")))
    again = await opened(sharded(redis.url))
    assert (await again.progress(CRAWL)).known == 0
    await again.close()


async def test_no_two_shards_give_the_same_token(frontier: Frontier) -> None:
    await frontier.put(CRAWL, [make_task(number, f"{number % 40}.test") for number in range(400)])
    leases = [lease for _ in range(4) for lease in await take(frontier)]
    assert len({lease.token for lease in leases}) == len(leases) == 400
    assert len({shard_of(lease.task.lane, of=SHARDS) for lease in leases}) == SHARDS


async def test_dead_letters_of_all_shards_are_listed_requeued_and_dropped(frontier: Frontier) -> None:
    await frontier.put(CRAWL, [make_task(number, f"{number}.test", max_attempts=1) for number in range(30)])
    await frontier.settle([Retry(lease=lease, reason="timeout") for lease in await take(frontier)])
    assert len(await frontier.dead(CRAWL, DeadFilter())) == 30
    assert len(await frontier.dead(CRAWL, DeadFilter(), limit=7)) == 7
    assert await frontier.requeue_dead(CRAWL, DeadFilter(), limit=12) == 12
    assert await frontier.drop_dead(CRAWL, DeadFilter()) == 18
    assert (await frontier.progress(CRAWL)).outcomes == {"dropped": 18}


async def test_crawls_that_share_hosts_have_the_number_of_shards_of_the_first(
    redis: RedisServer, frontier: Frontier
) -> None:
    unsaid, other = await open_frontier(redis.url), await open_frontier(sharded(redis.url, 3))
    await unsaid.open_crawl(Crawl(id="news", spider="s"))
    assert redis.call("HGET", "shoal:shards", "news") == str(SHARDS).encode()
    with pytest.raises(UsageError, match=rf"it would share hosts with crawl 'books'.* Write \?shards={SHARDS} behind"):
        await other.open_crawl(Crawl(id="wide", spider="s"))
    assert sorted(crawl.id for crawl in await other.crawls()) == ["books", "news"]
    await other.open_crawl(Crawl(id="apart", spider="s", pace_scope="crawl"))
    for crawl in ("books", "news"):
        await unsaid.delete_crawl(crawl)
    assert (await other.open_crawl(Crawl(id="wide", spider="s"))).pace_scope == "host"
    assert redis.call("HGETALL", "shoal:sharing") == {b"wide": b"3"}
    await unsaid.close()
    await other.close()


async def test_how_a_crawl_shares_hosts_is_kept(frontier: Frontier) -> None:
    await frontier.open_crawl(Crawl(id="news", spider="s", pace_scope="crawl", weight=2.5, fastest=0.1))
    again = await frontier.open_crawl(Crawl(id="news", spider="s", weight=9.0))
    assert (again.pace_scope, again.weight, again.fastest) == ("crawl", 9.0, 0.0)
