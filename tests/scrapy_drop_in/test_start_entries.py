"""Start URLs in a real Redis, and what is made of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis, ResponseError
from scrapy import Request
from scrapy.settings import Settings
from scrapy.utils.request import fingerprint

from shoal.errors import UsageError
from shoal.scrapy import Addon, RedisSpider
from shoal.scrapy.redis_client import client_of, frontier_of, remarks_on
from shoal.scrapy.redis_spiders import StartEntries
from shoal.scrapy.requests import StoredRequests
from shoal.testing.servers.redis_server import RedisServer

KEY = "shop:start_urls"


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def client(redis: RedisServer) -> Iterator[Redis]:
    redis.call("FLUSHALL")
    with Redis(port=redis.port, driver_info=None) as client:
        yield client


@pytest.mark.parametrize(
    ("push", "order"),
    [
        (("LPUSH", KEY, "a", "b", "c"), [b"c", b"b", b"a"]),
        (("ZADD", KEY, 1, "a", 3, "c", 2, "b"), [b"c", b"b", b"a"]),
        (("SADD", KEY, "a", "b", "c"), None),
    ],
    ids=["list", "sorted set", "set"],
)
def test_lists_sets_and_sorted_sets_are_read(
    redis: RedisServer, client: Redis, push: tuple[Any, ...], order: list[bytes] | None
) -> None:
    redis.call(*push)
    entries = StartEntries(client, KEY)
    taken = [entry.pushed for entry in (*entries.take(2), *entries.take(2))]
    assert taken == order if order else sorted(taken) == [b"a", b"b", b"c"]
    assert entries.take(2) == []


def test_another_type_is_refused_and_left_alone(client: Redis) -> None:
    client.set(KEY, "a")
    with pytest.raises(ResponseError, match="SHOALTYPE string"):
        StartEntries(client, KEY).take(1)
    assert client.get(KEY) == b"a"


def test_what_a_dead_process_has_taken_is_taken_again_under_its_name(client: Redis) -> None:
    client.rpush(KEY, "a", "a", "b c")
    dead = StartEntries(client, KEY).take(2)
    assert [entry.pushed for entry in dead] == [b"a", b"a"]
    assert len({entry.name for entry in dead}) == 2
    entries = StartEntries(client, KEY)
    entries.make_due()
    again = entries.take(10)
    assert set(again[:2]) == set(dead)
    assert again[2].pushed == b"b c"
    entries.done(again)
    assert client.keys() == []


def test_an_entry_is_set_aside_once(client: Redis) -> None:
    client.rpush(KEY, "a")
    one, other = StartEntries(client, KEY), StartEntries(client, KEY)
    (entry,) = one.take(1)
    one.give_back([entry])
    assert other.take(1) == [entry]
    one.set_aside(entry)
    other.set_aside(entry)
    other.give_back([entry])
    assert client.lrange(one.aside, 0, -1) == [b"a"]
    assert client.keys() == [one.aside.encode()]


def test_a_url_that_is_pushed_twice_is_two_tasks_and_one_that_is_read_twice_is_one() -> None:
    requests = StoredRequests(RedisSpider("shop"), fingerprint)
    pushed, seen = Request("https://a.test/", dont_filter=True), Request("https://a.test/")
    first = requests.key_of(pushed, is_start=True, entry="1.1.0")
    assert first == requests.key_of(pushed, is_start=True, entry="1.1.0")
    assert first != requests.key_of(pushed, is_start=True, entry="1.2.0")
    # An own make_request_from_data may let them be filtered.
    assert requests.key_of(seen, is_start=True, entry="1") == requests.key_of(seen, is_start=True, entry="2")


def test_an_object_is_a_form_as_with_scrapy_redis() -> None:
    made = RedisSpider("shop").make_request_from_data(
        b'{"url": "https://a.test/", "method": "post", "meta": {"job": 7}, "q": "fish", "page": 2}'
    )
    assert isinstance(made, Request)
    assert (made.url, made.method, made.meta, made.body) == ("https://a.test/", "POST", {"job": 7}, b"q=fish&page=2")
    plain = RedisSpider("shop").make_request_from_data(b"https://a.test/?b=1\n")
    assert isinstance(plain, Request)
    assert (plain.url, plain.dont_filter) == ("https://a.test/?b=1", True)


@pytest.mark.parametrize(
    ("pushed", "why"),
    [
        (b'{"meta": {}}', 'it has no "url"'),
        (b'{"url": "https://a.test/"', "it is no JSON"),
        (b'{"url": ["https://a.test/"]}', "must be texts"),
        (b'{"url": "https://a.test/", "meta": "7"}', '"meta" an object'),
    ],
)
def test_an_object_that_is_no_request_says_why(pushed: bytes, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        RedisSpider("shop").make_request_from_data(pushed)


def test_the_frontier_is_where_scrapy_redis_had_its_queue() -> None:
    assert frontier_of(Settings()) == ""
    assert frontier_of(Settings({"REDIS_URL": "redis://a:1/2", "REDIS_HOST": "b"})) == "redis://a:1/2"
    apart = {"REDIS_HOST": "b", "REDIS_PORT": 7, "REDIS_PARAMS": {"password": "p@ss", "db": 3}}
    assert frontier_of(Settings(apart)) == "redis://:p%40ss@b:7/3"
    options = client_of(Settings(apart)).connection_pool.connection_kwargs
    assert (options["host"], options["port"], options["password"], options["db"]) == ("b", 7, "p@ss", 3)


def test_settings_that_have_no_meaning_here_are_named() -> None:
    spider = RedisSpider("shop")
    assert remarks_on(Settings({"SCHEDULER_PERSIST": True, "SCHEDULER_IDLE_BEFORE_CLOSE": 3}), spider) == []
    given = {
        "SCHEDULER_PERSIST": False,
        "SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.LifoQueue",
        "SCHEDULER_SERIALIZER": "json",
    }
    remarks = remarks_on(Settings(given), spider)
    assert {remark.split()[0] for remark in remarks} == given.keys()


def test_the_add_on_takes_the_place_of_what_is_not_installed() -> None:
    settings = Settings(
        {
            "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
            "ITEM_PIPELINES": {"scrapy_redis.pipelines.RedisPipeline": 300},
        }
    )
    Addon().update_settings(settings)
    assert settings["SCHEDULER"] == "shoal.scrapy.Scheduler"
    assert settings["ITEM_PIPELINES"]["shoal.scrapy.RedisPipeline"] == 300
