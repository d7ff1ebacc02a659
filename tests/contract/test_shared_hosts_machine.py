"""Whatever crawls do that share hosts, and in whatever order: a host sees no more than the strictest of them allows,
and in the end they get their shares of it.

Not by comparing frontiers, which may differ in who gets a slot, but by a host's own book."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from host_book import Entry, HostBook, Lent
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from shoal.frontier.base import Frontier
from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.model import Crawl, CrawlState, Done, ExitUse, LaneUpdate, Pool, Released, Retry, Task
from shoal.testing.clock import FakeClock
from shoal.testing.servers.redis_server import RedisServer

T = TypeVar("T")
NAMES = ["one", "two", "three"]
HOSTS = ["a.test", "b.test", "a.test via p"]
ACCOUNTS = ["c.test via q", "d.test via q"]
LEASE_SECONDS = 20.0
# Longer than any rest, and than limits count.
LONG_AFTER = 200.0
P = Pool(name="p", exits=("x", "y"), interval=1.5, cap=1, host_interval=1.0, host_cap=3, patience=1e6)
Q = Pool(name="q", exits=("anna",), interval=0.0, cap=9, host_interval=1.0, host_cap=9, exclusive=True, patience=1e6)

names = st.sampled_from(NAMES)
terms = st.builds(
    dict,
    interval=st.sampled_from([1.0, 2.0, 4.0]),
    cap=st.sampled_from([1, 2, 5, 50]),
    weight=st.sampled_from([1.0, 3.0]),
    needs_rules=st.booleans(),
)


class SharedHostsMachine(RuleBasedStateMachine):
    """Three crawls and two processes, on two hosts directly and via a pool, and with one account on two hosts."""

    shards: ClassVar[Sequence[int]] = (1,)

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.folder = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        self.book = HostBook(pools={"p": P, "q": Q})
        self.numbers = itertools.count(1)
        self.hosts = HOSTS

    async def open(self, shards: int) -> Frontier:
        raise NotImplementedError

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        shards = data.draw(st.sampled_from(self.shards))
        self.frontiers = [self.run(self.open(shards)) for _ in range(2)]
        # Each shard gives accounts out by itself, so those are refused.
        self.has_accounts = shards == 1
        self.hosts = HOSTS + ACCOUNTS * self.has_accounts
        for name in NAMES:
            self.open_crawl(name, data.draw(terms))

    def open_crawl(self, name: str, its_terms: dict[str, Any]) -> None:
        crawl = Crawl(id=name, spider="s", pools=(P, Q)[: 1 + self.has_accounts], **its_terms)
        self.run(self.frontiers[0].open_crawl(crawl))
        via = {host: self.book.pools[host[-1]] for host in self.hosts if " via " in host}
        self.book.entries[name] = Entry(
            crawl,
            paces={host: pool.host_interval for host, pool in via.items()},
            caps={host: pool.host_cap for host, pool in via.items()},
        )
        for host in self.hosts:
            self.put(name, host, 3)

    def put(self, name: str, host: str, count: int) -> None:
        pool = host.partition(" via ")[2] or "direct"
        keys = itertools.islice(self.numbers, count)
        tasks = [Task(url=f"https://x.test/{key}", key=key, lane=host, pool=pool) for key in keys]
        self.run(self.frontiers[0].put(name, tasks))
        if self.book.entries[name].state == CrawlState.FINISHED:
            self.book.entries[name].state = CrawlState.RUNNING

    @rule(name=names, number=st.integers(0, 4), count=st.integers(1, 4))
    def find_more(self, name: str, number: int, count: int) -> None:
        self.put(name, self.hosts[number % len(self.hosts)], count)

    @rule(
        chosen=st.lists(names, min_size=1, max_size=3, unique=True),
        limit=st.sampled_from([1, 3, 30]),
        horizon=st.sampled_from([0.0, 1.0, 5.0]),
        process=st.integers(0, 1),
        numbers=st.sets(st.integers(0, 9), max_size=3),
    )
    def lease(self, chosen: list[str], limit: int, horizon: float, process: int, numbers: set[int]) -> None:
        flying = [one for one in self.book.unsettled(self.clock()) if one.lease.crawl in chosen]
        landed = [one for number, one in enumerate(flying) if number in numbers]
        for one in landed:
            one.has_landed = True
        self.ask(chosen, limit, horizon, process, landed)

    @rule(name=names, process=st.integers(0, 1))
    def lease_all(self, name: str, process: int) -> None:
        """A worker with much room, as of one crawl."""
        self.ask([name], 30, 1.0, process, [])

    def ask(self, chosen: list[str], limit: int, horizon: float, process: int, landed: Sequence[Lent]) -> None:
        worker = f"w{process}"
        call = self.frontiers[process].lease(
            chosen,
            limit,
            worker=worker,
            seconds=LEASE_SECONDS,
            horizon=horizon,
            landed=[one.lease for one in landed],
        )
        batch = self.run(call)
        for lease in batch.leases:
            self.book.note_lease(lease, worker, now=self.clock(), seconds=LEASE_SECONDS)
        for name in batch.finished:
            if self.book.entries[name].state == CrawlState.RUNNING:
                self.book.entries[name].state = CrawlState.FINISHED

    @rule(number=st.integers(0, 9), how=st.sampled_from(["done", "retry", "rest", "rest", "slower"]))
    def settle(self, number: int, how: str) -> None:
        if self.book.lent:
            self.end(self.book.lent[-1 - number % len(self.book.lent)], how)

    def end(self, lent: Lent, how: str) -> None:
        """A result that comes in time, or too late: then it changes nothing."""
        lease, now = lent.lease, self.clock()
        host, use = lease.task.lane, ExitUse() if lease.exit != "direct" else None
        update = {"rest": LaneUpdate(rest_seconds=6.0), "slower": LaneUpdate(interval=4.0)}.get(how)
        if lease.opens_lane:
            update = LaneUpdate(rules=b"allow", rules_seconds=30.0)
        if how == "retry" and not lease.opens_lane:
            result: Any = Retry(lease=lease, reason="timeout", delay=5.0, free=True, exit=use)
        elif lease.opens_lane or how != "done":
            result = Released(lease=lease, lane=update, exit=use)
        else:
            result = Done(lease=lease, exit=use)
        report = self.run(self.frontiers[0].settle([result]))
        self.book.lent.remove(lent)
        if report.stale:
            assert lent.end <= now, "a lease that stands was refused"
            return
        if lease.opens_lane:
            self.book.rules[host] = now + 30.0
        elif how == "rest":
            self.book.rests[host] = max(self.book.rests.get(host, 0.0), now + 6.0)
        elif how == "slower":
            self.book.entries[lease.crawl].paces[host] = 4.0

    @rule(name=names, number=st.integers(0, 4), interval=st.sampled_from([1.0, 3.0]))
    def change_pace(self, name: str, number: int, interval: float) -> None:
        """`shoal pace` while it runs."""
        host = self.hosts[number % len(self.hosts)]
        self.run(self.frontiers[1].update_lane(name, host, LaneUpdate(interval=interval)))
        self.book.entries[name].paces[host] = interval

    @rule(name=names, host=st.sampled_from(HOSTS[:2]))
    def reserve(self, name: str, host: str) -> None:
        """A request that is not its lease's first, such as a log-in. A few: many lie further ahead than is possible."""
        if self.book.starts.get(host, 0.0) < self.clock() + 20.0:
            wait = self.run(self.frontiers[0].reserve(name, host))
            self.book.check_start(name, host, self.clock() + wait, now=self.clock())

    @rule(
        what=st.sampled_from(["pause", "cancel", "resume", "resume", "delete", "evict"]),
        name=names,
        its_terms=terms,
        process=st.integers(0, 1),
    )
    def control(self, what: str, name: str, its_terms: dict[str, Any], process: int) -> None:
        """The rare verbs share a rule, so that a run is mostly work."""
        match what:
            case "delete":
                self.delete_and_begin_anew(name, its_terms)
            case "evict":
                self.evict(process)
            case _:
                states = {"pause": CrawlState.PAUSED, "cancel": CrawlState.CANCELLED, "resume": CrawlState.RUNNING}
                self.steer(name, states[what])

    def steer(self, name: str, state: CrawlState) -> None:
        self.run(self.frontiers[1].set_state(name, state))
        if self.book.entries[name].state != CrawlState.FINISHED:
            self.book.entries[name].state = state

    def delete_and_begin_anew(self, name: str, its_terms: dict[str, Any]) -> None:
        self.run(self.frontiers[1].delete_crawl(name))
        self.book.forget(name)
        self.open_crawl(name, its_terms)

    def evict(self, process: int) -> None:
        """A worker dies, in whatever crawls it works."""
        worker = f"w{process}"
        self.run(self.frontiers[0].evict(worker))
        self.book.lent = [one for one in self.book.lent if one.worker != worker]

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 1.0, 3.0, 3.0, 21.0, 61.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def teardown(self) -> None:
        try:
            if self.book.entries:
                self.share_in_the_end(*NAMES[:2])
        finally:
            for frontier in self.frontiers if self.book.entries else []:
                self.run(frontier.close())
            self.loop.close()
            shutil.rmtree(self.folder)

    def share_in_the_end(self, *pair: str) -> None:
        """Two crawls that want a host get their shares of it, and no start slot is wasted."""
        for name in NAMES:
            if name not in pair:
                self.run(self.frontiers[0].delete_crawl(name))
                self.book.forget(name)
        host, weights = HOSTS[0], dict[str, float]()
        for name in pair:
            entry = self.book.entries[name]
            self.steer(name, CrawlState.RUNNING)
            self.put(name, host, 30)
            even = LaneUpdate(interval=1.0, base_interval=1.0, cap=50, rules=b"allow", rules_seconds=2 * LONG_AFTER)
            self.run(self.frontiers[0].update_lane(name, host, even))
            entry.paces[host], weights[name] = 1.0, entry.crawl.weight
        for process in range(2):
            self.evict(process)
        self.book.lent.clear()
        self.clock.advance(LONG_AFTER)
        self.fetch_by_turns(pair, host, seconds=4)
        counts = self.fetch_by_turns(pair, host, seconds=12)
        assert sum(counts.values()) >= 11, counts
        wanted = 12 * weights[pair[0]] / sum(weights.values())
        assert abs(counts[pair[0]] - wanted) <= 2, (counts, weights)

    def fetch_by_turns(self, pair: Sequence[str], host: str, *, seconds: int) -> dict[str, int]:
        counts = dict.fromkeys(pair, 0)
        for _ in range(2 * seconds):
            for name in pair:
                call = self.frontiers[0].lease([name], 100, worker=name, seconds=LEASE_SECONDS, horizon=0.0)
                leases = self.run(call).leases
                self.run(self.frontiers[0].settle([Done(lease=lease) for lease in leases]))
                counts[name] += sum(lease.task.lane == host for lease in leases)
            self.clock.advance(0.5)
        return counts


class SqliteSharedHosts(SharedHostsMachine):
    async def open(self, shards: int) -> Frontier:
        return await SqliteFrontier.open(self.folder / "shoal.db", clock=self.clock)


class RedisSharedHosts(SharedHostsMachine):
    shards = (1, 3)
    server: ClassVar[RedisServer]

    def __init__(self) -> None:
        super().__init__()
        self.server.call("FLUSHALL")

    async def open(self, shards: int) -> Frontier:
        return await RedisFrontier.open(f"{self.server.url}?shards={shards}", clock=self.clock)


# In `make test`, and in what only `make test-all` runs.
EXAMPLES, EXAMPLES_AT_LENGTH = 15, 30


@pytest.fixture(scope="module", autouse=True)
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    RedisSharedHosts.server = RedisServer(tmp_path_factory.mktemp("redis"), "--appendfsync", "no").start()
    yield
    RedisSharedHosts.server.kill()


class TestSqliteSharedHosts(SqliteSharedHosts.TestCase):  # type: ignore[valid-type, misc]
    settings = settings(max_examples=EXAMPLES, stateful_step_count=40)


class TestRedisSharedHosts(RedisSharedHosts.TestCase):  # type: ignore[valid-type, misc]
    settings = settings(max_examples=EXAMPLES, stateful_step_count=40)


@pytest.mark.full
class TestSqliteSharedHostsAtLength(SqliteSharedHosts.TestCase):  # type: ignore[valid-type, misc]
    settings = settings(max_examples=EXAMPLES_AT_LENGTH, stateful_step_count=40)


@pytest.mark.full
class TestRedisSharedHostsAtLength(RedisSharedHosts.TestCase):  # type: ignore[valid-type, misc]
    settings = settings(max_examples=EXAMPLES_AT_LENGTH, stateful_step_count=40)
