"""`docs/explanation/redis-layout.md` names every key that the Redis frontier uses, with its type and who writes it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from redis_keys import CLIENTS, watched

from shoal.frontier.redis.deletion import SHARING
from shoal.frontier.redis.frontier import DUTIES, RedisFrontier
from shoal.frontier.redis.inbox import RedisInbox, inbox_keys
from shoal.frontier.redis.repair import REWRITTEN
from shoal.frontier.redis.runner import CRAWLS, LAST_NUMBER, SHARDS, WORKERS
from shoal.frontier.redis.scripts import LuaFolder
from shoal.frontier.redis.shards import shard_of
from shoal.model import (
    Budgets,
    Crawl,
    CrawlState,
    Dead,
    DeadFilter,
    Done,
    ExitUse,
    Heartbeat,
    LaneUpdate,
    Lease,
    Pool,
    Released,
    Retry,
)
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.contract.frontier.history_promises import point_of
from shoal.testing.servers.redis_server import RedisServer

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "redis-layout.md"
ROW = re.compile(r"^\| `(?P<key>[^`]+)` \| (?P<type>\w+) \| (?P<fields>.*) \| (?P<writers>[^|]+) \|$", re.MULTILINE)
PREFIX = re.compile(r"^shoal:\{\d+-\d+\}:[^:]*:")
PROXIES = Pool(name="proxies", exits=("x", "y", "z"), interval=0.0, quarantine=1.0, max_quarantine=2.0, patience=60.0)
ACCOUNTS = Pool(name="accounts", exits=("anna",), interval=0.0, exclusive=True, quarantine=1.0)
FIXED_FIELDS = {"crawl", "count", "turns", "pool:NAME"}  # the fields of other hashes are names of lanes, exits, …
HOME = "home.test"
AWAY = next(f"{number}.test" for number in range(100) if shard_of(f"{number}.test", of=2) != shard_of(HOME, of=2))


class Row(NamedTuple):
    """A key as the page describes it."""

    key: str
    type: str
    fields: str
    writers: frozenset[str]

    def matches(self, name: str) -> bool:
        """Words in capitals stand for a part of the key."""
        return re.fullmatch(re.sub("CRAWL|KIND|LANE|NAME|RUN_ID|G|N", ".+", re.escape(self.key)), name) is not None


def rows() -> list[Row]:
    found = ROW.finditer(PAGE.read_text(encoding="utf-8"))
    return [
        Row(row["key"], row["type"], row["fields"], frozenset(row["writers"].replace("`", "").split(", ")))
        for row in found
    ]


def row_of(key: str) -> Row:
    """The page's row for a key of a server; keys of a crawl stand there without their prefix."""
    name = PREFIX.sub("", key)
    found = [row for row in rows() if row.matches(name)]
    # Most keys are one word: `count` is not `q:LANE`.
    exact = [row for row in found if row.key == name] or found
    assert len(exact) == 1, f"{key} is on the page {len(exact)} times"
    return exact[0]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def frontier(redis: RedisServer, clock: FakeClock) -> AsyncIterator[RedisFrontier]:
    frontier = await RedisFrontier.open(redis.url, clock=clock)
    yield frontier
    await frontier.close()


@pytest.fixture
async def inbox(redis: RedisServer) -> AsyncIterator[RedisInbox]:
    inbox = RedisInbox(redis.url)
    yield inbox
    await inbox.close()


async def take(frontier: RedisFrontier, crawl: str, limit: int = 20) -> list[Lease]:
    return (await frontier.lease([crawl], limit, worker="w", seconds=60.0, horizon=5.0)).leases


async def crawl_with_exits(frontier: RedisFrontier, clock: FakeClock) -> None:
    """Keys that expire, budgets, exits that fail, sessions, dead letters, samples."""
    budgets = Budgets(pages=1000, per_lane=100, per_shape=50)
    pools = (PROXIES, ACCOUNTS)
    crawl = Crawl(
        id="books", spider="s", interval=0.0, cap=50, budgets=budgets, pools=pools, dedup_ttl=100.0, needs_rules=False
    )
    await frontier.open_crawl(crawl)
    lanes = [f"{number}.test via {pool.name}" for number in range(4) for pool in pools] + ["plain.test"]
    tasks = [make_task(number, lane, shape=7, max_attempts=1 + number % 3) for number, lane in enumerate(lanes * 4)]
    await frontier.put("books", tasks, rejected={"scope": 1}, samples=[("scope", "http://a/")])
    await frontier.put("books", [make_task(1000, "plain.test", delay=5.0)])
    await frontier.bury("books", [(make_task(1001, "plain.test"), "bad: x")])
    await frontier.know("books", range(2000, 2500))
    for verdict in ("failed", "blocked", "ok"):
        leases = await take(frontier, "books")
        await frontier.extend(leases, seconds=50.0)
        await frontier.settle(
            [Retry(lease=one, reason="r", delay=0.0, exit=ExitUse(verdict=verdict)) for one in leases[2:]]
            + [Done(lease=one, exit=ExitUse(session=b"cookies"), notes={"items": 1}) for one in leases[:1]]
            + [Dead(lease=one, reason="gone", detail="") for one in leases[1:2]]
        )
        clock.advance(3.0)
    await frontier.update_lane("books", "plain.test", LaneUpdate(rules=b"rules", rules_seconds=60.0))
    slow = LaneUpdate(rest_seconds=0.1, base_interval=0.5, why="slow")
    await frontier.update_lane("books", "plain.test", slow)
    await frontier.reserve("books", "1.test via proxies", exit="x")
    await frontier.settle([Released(lease=one, lane=slow) for one in await take(frontier, "books")])
    clock.advance(1.0)
    leases = await take(frontier, "books")
    await frontier.lease(["books"], 1, worker="w", seconds=60.0, horizon=5.0, landed=leases)
    clock.advance(200.0)
    await take(frontier, "books")
    offers = (Pool(name="region:de", exits=("d1",)), msgspec.structs.replace(PROXIES, exits=("own",)))
    await frontier.lease(["books"], 1, worker="w", seconds=60.0, horizon=5.0, offers=offers)
    await frontier.evict("w")
    await frontier.requeue_dead("books", DeadFilter(), limit=1)
    await frontier.drop_dead("books", DeadFilter(), limit=1)
    await frontier.forget("books", [0, 5])
    await frontier.open_crawl(
        Crawl(id="books", spider="s", interval=0.5, cap=40, budgets=budgets, pools=pools[:1], dedup_ttl=50.0)
    )
    await frontier.open_crawl(
        Crawl(id="books", spider="s", interval=0.5, cap=40, budgets=budgets, pools=pools, dedup_ttl=50.0)
    )
    for state in (CrawlState.PAUSED, CrawlState.RUNNING, CrawlState.CANCELLED, CrawlState.RUNNING):
        await frontier.set_state("books", state)
    await frontier.set_feeding("books", "feeder", seconds=10.0)
    await frontier.exits("books")
    await frontier.beat(Heartbeat(worker="w", host="h", pid=1, crawl="books", version="1", slots=1))
    await frontier.keep_point("books", point_of(1))
    await frontier.hold_duty("alerts", "w", seconds=10.0)


async def crawl_of_kinds(redis: RedisServer, frontier: RedisFrontier, clock: FakeClock) -> None:
    """Tasks of two kinds: lent, found, given back, lost, dead, cancelled, given up with their exits, repaired."""
    pools = (msgspec.structs.replace(PROXIES, patience=0.0),)
    await frontier.open_crawl(Crawl(id="kinds", spider="s", interval=0.0, cap=50, pools=pools))

    async def ask(limit: int = 20) -> list[Lease]:
        batch = await frontier.lease(
            ["kinds"], limit, worker="w", seconds=60.0, horizon=5.0, kinds=("http", "browser", "eu")
        )
        return batch.leases

    await frontier.put("kinds", [make_task(number, kind="browser", delay=number % 2) for number in range(9)])
    first, second, third, fourth, *_ = await ask()
    await frontier.settle([Done(lease=first, found=[make_task(20, kind="eu")]), Released(lease=second)])
    await frontier.settle([Dead(lease=third, reason="gone", detail=""), Retry(lease=fourth, reason="r", delay=2.0)])
    await frontier.requeue_dead("kinds", DeadFilter())
    await frontier.update_lane("kinds", "a.test", LaneUpdate(rest_seconds=0.1))
    await frontier.reserve("kinds", "a.test")
    await frontier.evict("w")
    for state in (CrawlState.CANCELLED, CrawlState.RUNNING):
        await frontier.set_state("kinds", state)
        clock.advance(5.0)
    leases = await ask()
    await frontier.lease(["kinds"], 0, worker="w", seconds=60.0, horizon=0.0, landed=leases)
    await frontier.open_crawl(Crawl(id="kinds", spider="s", interval=0.5, cap=40, pools=()))
    await frontier.put("kinds", [make_task(30, "b.test via proxies", kind="eu")])
    await frontier.set_feeding("kinds", "feeder", seconds=500.0)
    clock.advance(90.0)
    await ask()
    let_it_seem_restarted(redis, "shoal:{0-1}:kinds:")
    await frontier.put("kinds", [make_task(31, kind="eu")])


async def crawl_in_shards(redis: RedisServer, clock: FakeClock) -> None:
    """Links from one shard to another, and a budget that is shared out."""
    frontier = await RedisFrontier.open(f"{redis.url}?shards=2", clock=clock)
    await frontier.open_crawl(
        Crawl(id="wide", spider="s", interval=0.0, cap=50, pace_scope="crawl", budgets=Budgets(pages=100))
    )
    await frontier.put("wide", [make_task(1, HOME)])
    (lease,) = await take(frontier, "wide")
    await frontier.settle([Done(lease=lease, found=[make_task(number, AWAY) for number in range(2, 9)])])
    let_it_seem_restarted(redis, "shoal:{1-2}:wide:")
    await frontier.settle([Done(lease=one) for one in await take(frontier, "wide")])
    clock.advance(5.0)
    while not (await frontier.lease(["wide"], 9, worker="w", seconds=60.0, horizon=0.0)).finished:
        clock.advance(1.0)
    await frontier.put("wide", [make_task(20, HOME)])
    await frontier.close()


def let_it_seem_restarted(redis: RedisServer, prefix: str) -> None:
    """As after a restart of the server: the crawl is repaired before the next change."""
    redis.call("EVAL", "return redis.call('HSET', KEYS[1], 'run', 'earlier')", 1, prefix + "crawl")


async def use_everything(redis: RedisServer, frontier: RedisFrontier, inbox: RedisInbox, clock: FakeClock) -> None:
    await crawl_with_exits(frontier, clock)
    await crawl_of_kinds(redis, frontier, clock)
    await crawl_in_shards(redis, clock)
    await frontier.open_crawl(Crawl(id="loose", spider="s", interval=0.0, cap=50, dedup="bloom:0.01"))
    await frontier.put("loose", [make_task(1, HOME)])
    await frontier.know("loose", [2])
    await frontier.settle([Done(lease=one, again=one.task, again_in=9.0) for one in await take(frontier, "loose")])
    await frontier.put("loose", [make_task(1, HOME, hastens=True)])
    await take(frontier, "loose")
    await frontier.put("loose", [make_task(3, HOME)])
    await frontier.settle([Done(lease=one, again=one.task, again_in=9.0) for one in await take(frontier, "loose")])
    redis.call("LPUSH", inbox_keys("books")[0], "http://a/", "http://b/")
    await inbox.take("books", 1)
    let_it_seem_restarted(redis, "shoal:{0-1}:books:")
    await take(frontier, "books")


async def test_every_key_is_on_the_page_with_its_type_and_its_fields(
    redis: RedisServer, frontier: RedisFrontier, inbox: RedisInbox, clock: FakeClock
) -> None:
    await use_everything(redis, frontier, inbox, clock)
    keys = [key.decode() for key in redis.call("KEYS", "*")]
    types = {key: redis.call("TYPE", key).decode() for key in keys}
    assert {key: row_of(key).type for key in keys} == types
    for key in keys:
        if row_of(key).key in FIXED_FIELDS:
            names = {name.decode() for name in redis.call("HKEYS", key)}
            # A pool's blocks and exits, and kinds, have fields of their own, which the page explains.
            named = {name for name in names if not name.startswith(("b:", "e:", "kind:"))}
            assert {name for name in named if f"`{name}`" not in row_of(key).fields} == set(), key


async def test_the_page_names_every_verb_that_writes_a_key_and_no_key_that_is_not_written(
    redis: RedisServer, frontier: RedisFrontier, inbox: RedisInbox, clock: FakeClock
) -> None:
    with watched(redis) as written:
        await use_everything(redis, frontier, inbox, clock)
        await inbox.forget("books")
        for crawl in ("books", "wide", "loose", "kinds"):
            await frontier.delete_crawl(crawl)
    by_row: dict[str, set[str]] = {row.key: set() for row in rows()}
    for writer, key in written:
        by_row[row_of(key).key].add(writer)
    lacking = {row.key: by_row[row.key] - row.writers for row in rows() if by_row[row.key] - row.writers}
    assert lacking == {}
    assert {key for key, writers in by_row.items() if not writers} <= {"shoal:rewritten:RUN_ID"}  # only in a cluster


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.key)
def test_a_verb_that_the_page_names_as_a_writer_has_the_key_in_its_script(row: Row) -> None:
    start = re.split("[A-Z]", row.key.rpartition("}:")[2])[0]
    scripts = LuaFolder().scripts()
    named = [verb for verb in row.writers - {CLIENTS} if not row.key.startswith("shoal:{shoal:inbox")]
    for verb in named if not row.key.startswith("shoal:inbox") else []:
        assert re.search(rf"'{re.escape(start)}'", scripts[verb].text), f"{verb} does not know {row.key}"


def test_every_key_in_the_code_is_on_the_page_and_every_key_of_the_page_in_the_code() -> None:
    in_code = keys_in_lua() | keys_in_python()
    on_page = {row.key for row in rows()}
    starts = {re.split("[A-Z]", key)[0] if is_of_a_script(key) else key for key in on_page}
    assert in_code - starts - on_page == set()
    assert starts - in_code == set()


def is_of_a_script(key: str) -> bool:
    """Whether scripts put the key together, from its beginning and a name."""
    return ":" in key and (key.startswith((WORKERS, DUTIES)) or not key.startswith("shoal:"))


def keys_in_lua() -> set[str]:
    """Keys as scripts write them behind their prefix; the beginning of those that end with a name."""
    found = set()
    for kind in ("parts", "verbs"):
        for name in LuaFolder().names(kind):
            text = LuaFolder().text(kind, name)
            keys = re.findall(r"(?:P|host_names\.slot) \.\. '([\w:]+)'|(?:read_fields|tally)\('([\w:]+)'", text)
            # The keys of workers and of duties have prefixes of their own.
            prefix = {"beat": WORKERS, "workers": WORKERS, "hold_duty": DUTIES}.get(name, "")
            found |= {prefix + (one or other) for one, other in keys}
    return found


def keys_in_python() -> set[str]:
    found = {CRAWLS, LAST_NUMBER, SHARDS, SHARING, REWRITTEN, f"{REWRITTEN}:RUN_ID", *inbox_keys("NAME")}
    for path in (ROOT / "src" / "shoal" / "frontier" / "redis").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r'prefix(?:_of\(\w+\))? \+ "(\w+)"', text))
        found |= {WORKERS + name for name in re.findall(r'WORKERS \+ "(\w+)"', text)}
    return found
