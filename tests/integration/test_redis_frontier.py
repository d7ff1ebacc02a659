"""The Redis frontier on a real server: how it is opened, filled up and grown."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from pathlib import Path

import pytest
from redis_crawls import CRAWL, PREFIX, claimed, opened, take

from shoal.errors import ServerUnreachable, UsageError
from shoal.frontier import open_frontier
from shoal.frontier.redis.address import new_connection, parse_address
from shoal.frontier.redis.connection import Connection
from shoal.frontier.redis.lease import MAX_LEASES
from shoal.model import Crawl, DeadCount, DeadFilter, Done
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.servers.redis_server import RedisServer

FROZEN_SECONDS = 0.05
LETTERS = 10_000


async def test_the_waits_of_many_leases_count_from_one_moment(own_redis: RedisServer) -> None:
    asked: list[float] = []

    def clock_of_a_process_that_is_frozen_between_scripts() -> float:
        if asked:
            time.sleep(FROZEN_SECONDS)
        return time.time()

    frontier = await opened(own_redis, clock=clock_of_a_process_that_is_frozen_between_scripts, interval=5.0)
    await frontier.put(CRAWL, [make_task(number, lane=f"{number}.test") for number in range(MAX_LEASES + 1)])
    asked.append(time.monotonic())
    batch = await frontier.lease([CRAWL], MAX_LEASES + 1, worker="w", seconds=60.0, horizon=0.0)
    assert [lease.wait for lease in batch.leases[:MAX_LEASES]] == [0.0] * MAX_LEASES
    assert batch.leases[-1].wait >= FROZEN_SECONDS
    await frontier.close()


async def test_opens_by_url(own_redis: RedisServer) -> None:
    frontier = await open_frontier(own_redis.url)
    assert await frontier.crawls() == []
    await frontier.close()


async def test_opens_a_socket_in_the_file_system(tmp_path: Path) -> None:
    own_redis = RedisServer(tmp_path / "redis", "--unixsocket", str(tmp_path / "s")).start()
    frontier = await open_frontier(f"unix://{tmp_path / 's'}")
    assert await frontier.crawls() == []
    await frontier.close()
    own_redis.kill()


async def test_masks_the_password_of_a_server_that_is_gone() -> None:
    with pytest.raises(ServerUnreachable) as caught:
        await open_frontier("redis://me:s3cret@127.0.0.1:1/0")
    assert "redis://me:***@127.0.0.1:1/0" in str(caught.value)
    assert "s3cret" not in str(caught.value)


async def test_says_that_the_password_is_wrong_without_saying_it(own_redis: RedisServer) -> None:
    own_redis.call("CONFIG", "SET", "requirepass", "right")
    with pytest.raises(UsageError, match="refuses us") as caught:
        await open_frontier(own_redis.url.replace("//", "//:wr0ng@"))
    assert "wr0ng" not in str(caught.value)


async def test_says_once_per_crawl_how_to_set_up_a_server_that_would_lose_work(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    own_redis.call("CONFIG", "SET", "appendonly", "no")
    own_redis.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with caplog.at_level(logging.WARNING, logger="shoal"):
        frontier = await open_frontier(own_redis.url)
        assert caplog.messages == []
        await frontier.open_crawl(Crawl(id="warned-1", spider="warned"))
        await frontier.open_crawl(Crawl(id="warned-1", spider="warned"))
        other = await open_frontier(own_redis.url)
        await other.crawls()
    await other.close()
    await frontier.close()
    assert ["appendonly yes" in line for line in caplog.messages] == [True, False]
    assert "maxmemory-policy noeviction" in caplog.messages[1]


async def test_the_command_that_a_warning_names_mends_the_server(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    own_redis.call("CONFIG", "SET", "appendonly", "no")
    own_redis.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    frontier = await open_frontier(own_redis.url)
    await frontier.open_crawl(Crawl(id="mended-1", spider="mended"))
    for message in caplog.messages:
        line = message.partition("fix it with: ")[2]
        process = await asyncio.create_subprocess_exec("sh", "-c", line, stdout=asyncio.subprocess.PIPE)
        assert await process.communicate() == (b"OK\n", None)
    caplog.clear()
    await frontier.open_crawl(Crawl(id="mended-2", spider="mended"))
    assert caplog.messages == []
    await frontier.close()


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("redis://127.0.0.1:6390/0", "redis-cli -h 127.0.0.1 -p 6390"),
        ("redis://cache.example/0", "redis-cli -h cache.example -p 6379"),
        ("redis://me:s3cret@h:7000/0", "redis-cli -h h -p 7000 --user me --askpass"),
        ("redis://:s3cret@h:7000/0", "redis-cli -h h -p 7000 --askpass"),
        ("unix:///run/my redis.sock", "redis-cli -s '/run/my redis.sock'"),
        ("rediss://h:6390/0?ssl_ca_certs=/etc/ca.pem", "redis-cli -h h -p 6390 --tls --cacert /etc/ca.pem"),
    ],
)
def test_redis_cli_is_told_which_server_is_meant(url: str, line: str) -> None:
    assert Connection(new_connection(parse_address(url).server), {}).redis_cli == line


async def test_waits_while_the_server_is_at_its_memory_limit(own_redis: RedisServer) -> None:
    frontier = await opened(own_redis)
    await frontier.put(CRAWL, [make_task(1), make_task(2)])
    first, second = await take(frontier)
    own_redis.call("CONFIG", "SET", "maxmemory", "1mb")
    with pytest.raises(ServerUnreachable, match="at maxmemory"):
        await frontier.settle([Done(lease=first, found=[make_task(3)])])
    assert (await frontier.settle([Done(lease=second)])).stale == []
    assert (await frontier.progress(CRAWL)).leased == 1
    own_redis.call("CONFIG", "SET", "maxmemory", "0")
    report = await frontier.settle([Done(lease=first, found=[make_task(3)])])
    assert report.stale == []
    assert claimed(await frontier.progress(CRAWL)) == {"queued": 1, "delayed": 0, "leased": 0, "dead": 0, "done": 2}
    await frontier.close()


async def test_a_result_that_went_through_before_the_limit_is_not_stale_when_sent_again(own_redis: RedisServer) -> None:
    frontier = await opened(own_redis)
    await frontier.put(CRAWL, [make_task(number) for number in range(101)])
    leases = [*await take(frontier), *await take(frontier)]
    results = [*(Done(lease=lease) for lease in leases[:100]), Done(lease=leases[100], found=[make_task(500)])]
    own_redis.call("CONFIG", "SET", "maxmemory", "1mb")
    with pytest.raises(ServerUnreachable, match="at maxmemory"):
        await frontier.settle(results)
    own_redis.call("CONFIG", "SET", "maxmemory", "0")
    assert (await frontier.settle(results)).stale == []
    progress = await frontier.progress(CRAWL)
    assert (progress.done, progress.queued, progress.stale) == (101, 1, 0)
    assert (await frontier.settle(results)).stale == leases
    await frontier.close()


async def test_deleting_a_crawl_leaves_the_keys_of_the_others_alone(own_redis: RedisServer) -> None:
    frontier = await opened(own_redis)
    await frontier.open_crawl(Crawl(id="books}", spider="s"))
    for crawl in (CRAWL, "books}"):
        await frontier.put(crawl, [make_task(number, f"{number % 300}.test", shape=3) for number in range(2000)])
    await take(frontier)
    before = own_redis.call("DBSIZE")
    await frontier.delete_crawl(CRAWL)
    assert [key for key in own_redis.call("KEYS", "*") if b"{books." in key] == []
    assert own_redis.call("DBSIZE") > before / 3
    assert (await frontier.progress("books}")).queued == 2000
    await frontier.close()


async def test_a_page_with_thousands_of_links_is_fenced_in_all_its_parts(own_redis: RedisServer) -> None:
    clock = FakeClock()
    frontier = await opened(own_redis, clock=clock)
    await frontier.put(CRAWL, [make_task(0), make_task(1)])
    lost, kept = await take(frontier, 2)
    clock.advance(60.0)
    again = await take(frontier)
    found = [make_task(number) for number in range(10, 1010)]
    assert (await frontier.settle([Done(lease=lost, found=found)])).stale == [lost]
    assert (await frontier.progress(CRAWL)).known == 2
    mine = next(lease for lease in again if lease.task.key == kept.task.key)
    assert (await frontier.settle([Done(lease=mine, found=found)])).stale == []
    assert (await frontier.progress(CRAWL)).queued == 1000
    await frontier.close()


async def test_keys_stay_in_compact_sets_as_they_grow(own_redis: RedisServer) -> None:
    frontier = await opened(own_redis)
    draw = random.Random(3)
    keys = [draw.getrandbits(64) - 2**63 for _ in range(6000)]
    for start in range(0, 6000, 1500):
        await frontier.put(CRAWL, [make_task(key) for key in keys[start : start + 1500]])
    buckets = int(own_redis.call("HGET", PREFIX + "crawl", "buckets"))
    sizes = [own_redis.call("SCARD", f"{PREFIX}seen:{bucket}") for bucket in range(buckets)]
    encodings = {own_redis.call("OBJECT", "ENCODING", f"{PREFIX}seen:{bucket}") for bucket in range(buckets)}
    assert (sum(sizes), encodings) == (6000, {b"intset"})
    assert max(sizes) < 400
    assert (await frontier.put(CRAWL, [make_task(key) for key in keys])).duplicates == 6000
    await frontier.forget(CRAWL, keys[:1])
    await frontier.close()


async def test_many_dead_letters_are_searched_and_counted_in_few_steps(own_redis: RedisServer) -> None:
    frontier = await opened(own_redis)
    for first in range(0, LETTERS, 1000):
        numbers = range(first, first + 1000)
        await frontier.bury(CRAWL, [(make_task(n, lane=f"{n % 500}.test"), f"http_{500 + n % 4}") for n in numbers])

    def steps() -> int:
        return int(own_redis.call("INFO", "commandstats")["cmdstat_evalsha"]["calls"])

    before = steps()
    assert len(await frontier.dead(CRAWL, DeadFilter(lane="7.test"), limit=51)) == LETTERS // 500
    searched = steps()
    assert searched - before <= 7
    assert await frontier.count_dead(CRAWL, DeadFilter(reason="http_503")) == DeadCount(matching=LETTERS // 4)
    counted = steps()
    assert counted - searched <= 7
    assert len(await frontier.dead(CRAWL, DeadFilter(), limit=51)) == 51
    assert steps() - counted == 1
    await frontier.close()
