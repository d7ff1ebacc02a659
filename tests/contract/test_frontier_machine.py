"""The frontiers on SQLite and on Redis do the same, whatever is asked of them and in whatever order.

Neither is the model of the other: their code shares the rules in `frontier/rules/`, of which the Lua scripts have a
copy, and nothing else. What both do wrong in the same way the contract must find, and test_shared_hosts_machine.py."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator
from itertools import groupby
from typing import Any, ClassVar

import msgspec
import pytest
from frontier_strategies import (
    EXITS,
    KEYS,
    KINDS,
    LANES,
    OFFERS,
    OPEN_PLAIN,
    PLAIN,
    REASONS,
    SAMPLED,
    SITES,
    STRICT,
    changed_crawls,
    crawl_names,
    filters,
    in_its_lane,
    lane_names,
    make_result,
    tasks,
    updates,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal.frontier.base import Frontier
from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.rules.constants import STAYER
from shoal.model import (
    VISITS,
    Budgets,
    Crawl,
    CrawlState,
    DeadFilter,
    Done,
    LaneStatus,
    LaneUpdate,
    Lease,
    LeaseBatch,
    Result,
    Task,
)
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.history_promises import point_of
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.testing.servers.redis_server import RedisServer

# In `make test`, and in what only `make test-all` runs.
EXAMPLES, EXAMPLES_AT_LENGTH = 15, 60


class FrontierMachine(RuleBasedStateMachine):
    """Every call goes to both frontiers; their answers and all that can be seen of them must be the same."""

    shares_hosts: ClassVar[bool] = True
    # For several crawls in one call, which looks at more of their lanes on Redis: see test_shared_hosts_machine.py.
    leases_at_once: ClassVar[bool] = False
    is_sharded: ClassVar[bool] = False
    is_stepped: ClassVar[bool] = False
    server: ClassVar[RedisServer]

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.runner = asyncio.Runner()
        steady = self.clock.steady if self.is_stepped else None
        self.sqlite: Frontier = MemoryFrontier(clock=self.clock, steady=steady)
        self.server.call("FLUSHALL")
        url = f"{self.server.url}?shards=5" if self.is_sharded else self.server.url
        self.redis: Frontier = self.runner.run(RedisFrontier.open(url, clock=self.clock, steady=steady))
        self.leases: list[Lease] = []
        self.plain = OPEN_PLAIN
        self.twins: dict[tuple[str, int, int], Lease] = {}

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Not `Runner.run`, which sets a handler for Ctrl-C around each of thousands of calls."""
        return self.runner.get_loop().run_until_complete(call)

    def both(self, call: Callable[[Frontier], Coroutine[Any, Any, Any]]) -> Any:
        expected, answer = self.run(call(self.sqlite)), self.run(call(self.redis))
        if isinstance(answer, LeaseBatch):
            # A time of this process, not of the clock: each frontier reads it at another moment.
            answer = msgspec.structs.replace(answer, at=expected.at)
        if isinstance(answer, LeaseBatch) and self.is_sharded:
            assert len(answer.leases) == len(expected.leases)
            for ours, theirs in zip(expected.leases, answer.leases, strict=True):
                self.twins[ours.crawl, ours.task.key, ours.token] = theirs
            # Shards number their leases each for itself.
            numbered = [
                msgspec.structs.replace(theirs, token=ours.token)
                for ours, theirs in zip(expected.leases, answer.leases, strict=True)
            ]
            answer = msgspec.structs.replace(answer, leases=numbered)
        assert answer == expected
        return expected

    def twin(self, lease: Lease, frontier: Frontier) -> Lease:
        """The lease as this frontier gave it."""
        if not self.is_sharded or frontier is self.sqlite:
            return lease
        return self.twins[lease.crawl, lease.task.key, lease.token]

    def openable(self, crawl: Crawl) -> Crawl:
        """The crawl as it can be compared: each shard begins its generations, and with them epochs, by itself, and
        chooses among its own exits."""
        if not self.shares_hosts:
            crawl = msgspec.structs.replace(crawl, pace_scope="crawl")
        if not self.is_sharded:
            return crawl
        budgets = msgspec.structs.replace(crawl.budgets, cost=0.0)
        return msgspec.structs.replace(crawl, dedup_ttl=0.0, pools=(), budgets=budgets)

    @initialize(ttl=st.sampled_from([0.0, 8.0]))
    def open_crawls(self, ttl: float) -> None:
        self.plain = self.openable(msgspec.structs.replace(OPEN_PLAIN, dedup_ttl=ttl))
        self.both(lambda frontier: frontier.open_crawl(self.plain))
        budgets = Budgets(pages=16, per_lane=8, per_shape=4)
        strict = Crawl(id=STRICT, spider="s", interval=1.0, cap=2, needs_rules=True, budgets=budgets)
        self.both(lambda frontier: frontier.open_crawl(self.openable(strict)))

    @rule(crawl=crawl_names, batch=st.lists(tasks, min_size=3, max_size=12))
    def put(self, crawl: str, batch: list[Task]) -> None:
        placed = [self.placed(task) for task in batch]
        self.both(lambda frontier: frontier.put(crawl, placed, rejected={"depth": 1}))

    @rule(crawl=crawl_names, batch=st.lists(st.tuples(tasks, st.sampled_from(REASONS)), max_size=6))
    def bury(self, crawl: str, batch: list[tuple[Task, str]]) -> None:
        letters = [(self.placed(task), reason) for task, reason in batch]
        self.both(lambda frontier: frontier.bury(crawl, letters))

    @rule(
        crawls=st.sampled_from([[PLAIN], [STRICT], [PLAIN, STRICT]]),
        limit=st.integers(0, 6),
        worker=st.sampled_from(["w1", "w2"]),
        horizon=st.sampled_from([0.0, 1.0, 5.0]),
        kinds=st.sampled_from([KINDS[:1], KINDS[1:2], KINDS[::2], KINDS]),
        data=st.data(),
    )
    def lease(
        self, crawls: list[str], limit: int, worker: str, horizon: float, kinds: list[str], data: st.DataObject
    ) -> None:
        landed = data.draw(st.lists(st.sampled_from(self.leases[-12:]), max_size=6)) if self.leases else []
        # Each shard chooses among its own exits.
        offers = () if self.is_sharded else data.draw(st.sampled_from([(), OFFERS[worker]]))
        for names in self.asked_together(crawls):
            batch = self.both(
                lambda frontier, names=names: frontier.lease(
                    names,
                    limit,
                    worker=worker,
                    seconds=10.0,
                    horizon=horizon,
                    landed=[self.twin(lease, frontier) for lease in landed],
                    kinds=kinds,
                    offers=offers,
                )
            )
            self.leases += batch.leases

    @rule(data=st.data(), count=st.integers(1, 6))
    def settle(self, data: st.DataObject, count: int) -> None:
        results = [make_result(lease, data.draw, placed=self.placed) for lease in self.leases[-count:]]
        self.both(lambda frontier: self.settled(frontier, results))

    @rule(data=st.data(), count=st.integers(1, 4))
    def settle_late_or_twice(self, data: st.DataObject, count: int) -> None:
        if self.leases:
            chosen = data.draw(st.lists(st.sampled_from(self.leases[-12:]), min_size=1, max_size=count))
            results = [make_result(lease, data.draw, placed=self.placed) for lease in chosen]
            self.both(lambda frontier: self.settled(frontier, results))

    @rule(count=st.integers(1, 6), seconds=st.sampled_from([5.0, 60.0]), waits=st.booleans())
    def visit_and_hasten(self, count: int, seconds: float, waits: bool) -> None:
        """Pages are done until their next visit, if their leases stand; then those visits are wanted now."""
        chosen = self.leases[-count:]
        visits = [Done(lease=lease, again=lease.task, again_in=seconds, notes={VISITS: 1}) for lease in chosen]
        self.both(lambda frontier: self.settled(frontier, visits))
        if waits:
            self.clock.advance(1.0)
        for crawl in dict.fromkeys(lease.crawl for lease in chosen):
            wanted = [msgspec.structs.replace(one.task, hastens=True) for one in chosen if one.crawl == crawl]
            self.both(lambda frontier, crawl=crawl, wanted=wanted: frontier.put(crawl, wanted))
        for names in self.asked_together([PLAIN, STRICT]):
            call = functools.partial(self.lent, names)
            self.leases += self.both(call).leases

    async def lent(self, names: list[str], frontier: Frontier) -> LeaseBatch:
        return await frontier.lease(names, 6, worker="w1", seconds=10.0, horizon=5.0, kinds=KINDS)

    def asked_together(self, crawls: list[str]) -> list[list[str]]:
        return [crawls] if self.leases_at_once else [[crawl] for crawl in crawls]

    def placed(self, task: Task) -> Task:
        """A key of several lanes would be known to each of their shards."""
        return in_its_lane(task) if self.is_sharded else task

    async def settled(self, frontier: Frontier, results: list[Result]) -> tuple[Any, ...]:
        theirs = [msgspec.structs.replace(result, lease=self.twin(result.lease, frontier)) for result in results]
        report = await frontier.settle(theirs)
        stale = sorted((lease.crawl, lease.task.key if self.is_sharded else lease.token) for lease in report.stale)
        # Another shard's epoch is learned with the next lease.
        told = (0, []) if self.is_sharded else (report.epoch, sorted(report.duplicates))
        return stale, report.refused, *told, sorted(report.failed)

    def named(self, leases: list[Lease]) -> list[Lease]:
        """The leases that an eviction may name: their tokens stand for no lease of the other crawl.

        `Frontier.evict` promises nothing of tokens that leases of two crawls share, and these workers lease from both.
        Shards number their leases each for itself, so there such a token stands for another lease than on SQLite."""
        if not self.is_sharded:
            return leases
        return [lease for lease in leases if not any(self.share_a_token(lease, other) for other in self.leases)]

    def share_a_token(self, lease: Lease, other: Lease) -> bool:
        """Whether they are of two crawls, and one of the frontiers gave them the same token."""
        tokens = [
            (self.twin(lease, frontier).token, self.twin(other, frontier).token)
            for frontier in (self.sqlite, self.redis)
        ]
        return lease.crawl != other.crawl and any(ours == theirs for ours, theirs in tokens)

    async def evicted(self, frontier: Frontier, worker: str, leases: list[Lease], cause: str) -> int:
        suspects = [self.twin(lease, frontier).token for lease in leases]
        return await frontier.evict(worker, suspects=suspects, cause=cause)

    async def reclaimed_unknown(self, frontier: Frontier, worker: str, leases: list[Lease]) -> int:
        return await frontier.evict(worker, known=[self.twin(lease, frontier).token for lease in leases])

    async def extended(self, frontier: Frontier) -> list[Any]:
        leases = [self.twin(lease, frontier) for lease in self.leases[-5:]]
        lost = await frontier.extend(leases, seconds=10.0)
        return sorted((lease.crawl, lease.task.key, lease.attempt) for lease in lost)

    @rule(seconds=st.sampled_from([0.1, 0.3, 0.9, 3.0, 11.0, 61.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(data=st.data(), worker=st.sampled_from(["w1", "w2"]), cause=st.sampled_from(["", "SIGSEGV"]))
    def evict(self, data: st.DataObject, worker: str, cause: str) -> None:
        """A worker dies, in the handlers of pages that it has, or has no more, or never had."""
        leases = data.draw(st.lists(st.sampled_from(self.leases[-8:]), max_size=2)) if self.leases else []
        named = self.named(leases)
        self.both(lambda frontier: self.evicted(frontier, worker, named, cause))

    @rule(data=st.data(), worker=st.sampled_from(["w1", "w2"]))
    def reclaim_unknown(self, data: st.DataObject, worker: str) -> None:
        """An answer with leases was lost: the worker knows of some others, or of none."""
        leases = data.draw(st.lists(st.sampled_from(self.leases[-8:]), max_size=4)) if self.leases else []
        named = self.named(leases)
        self.both(lambda frontier: self.reclaimed_unknown(frontier, worker, named))

    @precondition(lambda self: self.is_stepped)
    @rule(seconds=st.sampled_from([-3600.0, -3.0, -0.1, 0.1, 3.0, 3600.0]))
    def step_the_clock(self, seconds: float) -> None:
        self.clock.step(seconds)

    @rule(crawl=crawl_names, lane=lane_names, update=updates, missed=st.sampled_from([None, 0.0, 0.5]))
    def change_lane(self, crawl: str, lane: str, update: LaneUpdate, missed: float | None) -> None:
        self.both(lambda frontier: frontier.update_lane(crawl, lane, update))
        if missed is not None:
            self.both(lambda frontier: self.reserved(frontier, crawl, lane, missed))

    async def reserved(self, frontier: Frontier, crawl: str, lane: str, missed: float) -> float | None:
        """The wait for a slot. Where the clock is stepped, a frontier may take the answer for a late one."""
        wait = await frontier.reserve(crawl, lane, exit="x", missed=missed)
        return None if self.is_stepped else wait

    @rule(
        crawl=crawl_names,
        name=st.sampled_from(SITES),
        session=st.sampled_from([b"", b"a", b"b"]),
        version=st.integers(0, 3),
    )
    def keep_session(self, crawl: str, name: str, session: bytes, version: int) -> None:
        self.both(lambda frontier: frontier.keep_session(crawl, name, session, version=version))

    @rule(crawl=crawl_names, which=filters, limit=st.integers(1, 3), drops=st.booleans())
    def clear_dead(self, crawl: str, which: DeadFilter, limit: int, drops: bool) -> None:
        if self.is_sharded:
            limit = len(KEYS)  # else it may be any of those that died in different shards
        if drops:
            self.both(lambda frontier: frontier.drop_dead(crawl, which, limit=limit))
        else:
            self.both(lambda frontier: frontier.requeue_dead(crawl, which, limit=limit))

    @rule(crawl=crawl_names, keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=8))
    def forget(self, crawl: str, keys: list[int]) -> None:
        self.both(lambda frontier: frontier.forget(crawl, keys))

    @rule(crawl=crawl_names, keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4))
    def know(self, crawl: str, keys: list[int]) -> None:
        self.both(lambda frontier: frontier.know(crawl, keys))

    @rule(data=st.data(), crawl=crawl_names)
    def control(self, data: st.DataObject, crawl: str) -> None:
        """One of the rare verbs: they share a rule so that a run is mostly work."""
        match data.draw(st.sampled_from(["state", "resume", "feeding", "extend", "reopen", "point", "delete"])):
            case "state":
                state = data.draw(st.sampled_from([CrawlState.PAUSED, CrawlState.CANCELLED, CrawlState.STOPPED]))
                reason = data.draw(st.sampled_from(["", "the handler fails"]))
                self.both(lambda frontier: frontier.set_state(crawl, state, reason=reason))
            case "resume":
                self.both(lambda frontier: frontier.set_state(crawl, CrawlState.RUNNING))
            case "feeding":
                feeder = data.draw(st.sampled_from(["f", "g", f"{STAYER}w"]))
                seconds = data.draw(st.sampled_from([0.0, 0.5, 5.0]))
                makes_up = data.draw(st.sampled_from([None, 0.0, 1.0, 5.0]))
                self.both(lambda frontier: frontier.set_feeding(crawl, feeder, seconds=seconds, makes_up=makes_up))
            case "extend":
                self.both(self.extended)
            case "reopen":
                again = self.openable(data.draw(changed_crawls))
                self.both(lambda frontier: frontier.open_crawl(again))
            case "point":
                point, holder = point_of(data.draw(st.integers(0, 9))), data.draw(st.sampled_from("fg"))
                self.both(lambda frontier: frontier.keep_point(crawl, point))
                seconds, term = data.draw(st.sampled_from([0.0, 5.0])), data.draw(st.sampled_from([None, 1, 2, 3]))
                notes = data.draw(st.sampled_from([None, holder.encode()]))
                self.both(lambda frontier: frontier.hold_duty("d", holder, seconds=seconds, notes=notes, term=term))
            case _:
                self.both(lambda frontier: frontier.delete_crawl(PLAIN))
                if self.is_sharded:
                    # A new crawl numbers its leases from the clock on. In the same millisecond it would give tokens of
                    # the deleted crawl's leases again, and shards would give them to other leases than SQLite.
                    self.clock.advance(0.002)
                self.both(lambda frontier: frontier.open_crawl(self.plain))

    @invariant()
    def looks_the_same(self) -> None:
        self.both(self.overview)

    @rule()
    def looks_the_same_in_detail(self) -> None:
        self.both(self.details)

    async def overview(self, frontier: Frontier) -> list[Any]:
        crawls = await frontier.crawls()
        lanes = [self.comparable(await frontier.lanes(crawl.id)) for crawl in crawls]
        progress = [await frontier.progress(crawl.id) for crawl in crawls]
        return [crawls, lanes, progress]

    def comparable(self, lanes: list[LaneStatus]) -> list[Any]:
        """The lanes, busiest first. Of lanes of different shards that are as busy, any may be the first."""
        if not self.is_sharded:
            return lanes
        as_busy = groupby(lanes, key=lambda lane: (lane.waiting, lane.in_flight))
        return [sorted(group, key=lambda lane: lane.lane) for _, group in as_busy]

    async def details(self, frontier: Frontier) -> list[Any]:
        seen: list[Any] = []
        for crawl in await frontier.crawls():
            letters = await frontier.dead(crawl.id, DeadFilter())
            seen.append([await frontier.count_dead(crawl.id, DeadFilter(lane=lane)) for lane in LANES])
            # Of those that died in the same moment, any may be the first when they are of different shards.
            seen.append(sorted(letters, key=lambda letter: letter.task.key) if self.is_sharded else letters)
            seen.append(await asyncio.gather(*(frontier.look_up(crawl.id, key) for key in KEYS)))
            seen.append(await asyncio.gather(*(frontier.rules(crawl.id, lane) for lane in LANES)))
            samples = await asyncio.gather(*(frontier.samples(crawl.id, reason) for reason in SAMPLED))
            # A put into several shards gathers them shard by shard.
            seen.append([sorted(urls) for urls in samples] if self.is_sharded else samples)
            seen.append(await frontier.exits(crawl.id))
            seen.append([await frontier.points(crawl.id, seconds=300.0, most=most) for most in (3, 500)])
            seen.append(await asyncio.gather(*(frontier.session(crawl.id, name) for name in [*EXITS, *SITES])))
        return seen

    def teardown(self) -> None:
        try:
            self.both(self.details)
        finally:
            self.runner.run(self.redis.close())
            self.runner.close()


class SteppedMachine(FrontierMachine):
    """The process has a steady clock, and the clock of the frontiers is stepped. A crawl sees on Redis how another
    one's clock was stepped when that one has noticed it, so no hosts are shared."""

    shares_hosts = False
    leases_at_once = True
    is_stepped = True


class ShardsMachine(FrontierMachine):
    """Three lanes, each in a shard of its own."""

    shares_hosts = False
    leases_at_once = True
    is_sharded = True


# Hundreds of random calls find the orders of calls that no written test has. Hypothesis prints the calls of a failure
# and replays them in the next run.
@pytest.fixture(scope="module", autouse=True)
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    FrontierMachine.server = RedisServer(tmp_path_factory.mktemp("redis"), "--appendfsync", "no").start()
    yield
    FrontierMachine.server.kill()


class TestFrontierMachine(FrontierMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=EXAMPLES, stateful_step_count=40)


class TestSteppedMachine(SteppedMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=EXAMPLES, stateful_step_count=40)


class TestShardsMachine(ShardsMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=EXAMPLES, stateful_step_count=40)


@pytest.mark.full
class TestFrontierMachineAtLength(FrontierMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=EXAMPLES_AT_LENGTH, stateful_step_count=40)


@pytest.mark.full
class TestSteppedMachineAtLength(SteppedMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=EXAMPLES_AT_LENGTH, stateful_step_count=40)


@pytest.mark.full
class TestShardsMachineAtLength(ShardsMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(max_examples=EXAMPLES_AT_LENGTH, stateful_step_count=40)
