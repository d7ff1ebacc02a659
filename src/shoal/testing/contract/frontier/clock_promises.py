"""What every frontier promises about its clock: a step of it and an outage change nothing for the crawl."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from shoal.frontier.base import Frontier
from shoal.model import Crawl, CrawlState, Dead, DeadFilter, Done, LaneUpdate, Retry
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import (
    CRAWL,
    LEASE_SECONDS,
    FrontierCase,
    check_counts,
    keys,
    listed,
    make_task,
    take,
    take_one,
)

HOUR = 3600.0
USUAL = Crawl(id=CRAWL, spider="s", interval=0.0, cap=100)
# Verbs that may change what the delayed task of the first lane waits for.
VERBS: dict[str, Callable[[Frontier], Awaitable[object]]] = {
    "put": lambda frontier: frontier.put(CRAWL, [make_task(2)]),
    "update_lane": lambda frontier: frontier.update_lane(CRAWL, "a.test", LaneUpdate(cap=7)),
    "set_state": lambda frontier: frontier.set_state(CRAWL, CrawlState.PAUSED),
    "forget": lambda frontier: frontier.forget(CRAWL, [9]),
    "evict": lambda frontier: frontier.evict("w9"),
    "reclaim": lambda frontier: frontier.evict("w9", known=[]),
    "open_crawl": lambda frontier: frontier.open_crawl(USUAL),
    "open_crawl anew": lambda frontier: frontier.open_crawl(msgspec.structs.replace(USUAL, interval=1.0)),
}


class SlowLine:
    """The clock of a frontier as a process reads it whose next call takes so many seconds, and whose answer so many."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.there = self.back = 0.0

    def __call__(self) -> float:
        self._clock.advance(self.there)
        now = self._clock()
        self._clock.advance(self.back)
        self.there = self.back = 0.0
        return now


class ClockPromises(FrontierCase):
    """Steps of the clock, and times in which nobody could reach the frontier."""

    @pytest.fixture
    async def steady(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Frontier]:
        """The frontier of a process that has a steady clock."""
        frontier = await self.open(tmp_path, clock, clock.steady)
        await frontier.open_crawl(USUAL)
        yield frontier
        await frontier.close()

    @pytest.fixture
    async def other(self, steady: Frontier, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Frontier]:
        """Another such process."""
        other = await self.open(tmp_path, clock, clock.steady)
        yield other
        await other.close()

    async def begin(self, frontier: Frontier, *, interval: float = 2.0, tasks: int = 20) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=interval))
        await frontier.put(CRAWL, [make_task(number) for number in range(tasks)])

    @pytest.mark.parametrize("seconds", [-HOUR, HOUR, -5.0, 5.0])
    async def test_a_lane_keeps_its_pace_when_the_clock_is_stepped(
        self, steady: Frontier, other: Frontier, clock: FakeClock, seconds: float
    ) -> None:
        await self.begin(steady)
        starts = []
        for call in range(60):
            batch = await take(other if call % 3 else steady, 3, horizon=1.0, worker=f"w{call % 3}")
            starts += [clock.steady() + lease.wait for lease in batch.leases]
            clock.advance(0.4)
            if call == 30:
                clock.step(seconds)
        gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
        assert min(gaps) >= 2.0 - 1e-6
        # A clock that went back is noticed by a time that is up to a second old.
        assert max(gaps) <= 3.5

    @pytest.mark.parametrize("slow", [0.2, 3.0])
    @pytest.mark.parametrize("seconds", [-HOUR, HOUR])
    @pytest.mark.parametrize("asks_next", ["the same process", "another process"])
    async def test_a_lane_keeps_its_pace_when_the_clock_is_stepped_after_a_call_that_took_long(
        self, steady: Frontier, tmp_path: Path, clock: FakeClock, slow: float, seconds: float, asks_next: str
    ) -> None:
        """What its answer says of the crawl's time may be as old as the call, or as new as the answer. Another process
        does not know that the crawl's time stood still during that call."""
        line = SlowLine(clock)
        other = await self.open(tmp_path, line, clock.steady)
        await self.begin(steady, interval=0.1, tasks=100)
        starts, later = [], (10,) if asks_next == "the same process" else ()
        for call in range(20):
            line.there = slow if call == 9 else 0.0
            batch = await take(other if call in (0, 9, *later) else steady, 5, horizon=1.0, worker=f"w{call}")
            starts += [clock.steady() + lease.wait for lease in batch.leases]
            clock.advance(0.4)
            if call == 9:
                clock.step(seconds)
        gaps = [later - earlier for earlier, later in itertools.pairwise(sorted(starts))]
        assert len(gaps) > 50
        assert min(gaps) >= 0.1 - 1e-6
        await other.close()

    async def test_a_step_forward_ends_no_lease(self, steady: Frontier, other: Frontier, clock: FakeClock) -> None:
        await self.begin(steady, interval=0.0, tasks=2)
        lease = await take_one(steady)
        clock.advance(1.0)
        await take(other, 0, worker="w2")
        clock.step(HOUR)
        assert keys(await take(other, worker="w2")) == [1]
        assert await steady.extend([lease], seconds=LEASE_SECONDS) == []
        assert (await steady.progress(CRAWL)).lost == 0

    async def test_a_lease_lasts_as_long_as_ever_after_a_step_back(
        self, steady: Frontier, other: Frontier, clock: FakeClock
    ) -> None:
        await self.begin(steady, interval=0.0, tasks=1)
        await take_one(steady)
        clock.step(-HOUR)
        lent = []
        for _ in range(5):
            clock.advance(LEASE_SECONDS / 6)
            lent += keys(await take(other, worker="w2"))
        assert lent == []
        for _ in range(2):
            clock.advance(LEASE_SECONDS / 6)
            lent += keys(await take(other, worker="w2"))
        assert lent == [0]

    async def test_delays_and_rests_that_begin_after_a_step_forward_are_no_longer(
        self, steady: Frontier, clock: FakeClock
    ) -> None:
        await steady.put(CRAWL, [make_task(1), make_task(2, "b.test"), make_task(3, "b.test")])
        # Either lane may come first: they wait equally long, and may lie in shards on different servers.
        leases = {lease.task.key: lease for lease in (await take(steady, 2)).leases}
        clock.step(HOUR)
        rest = LaneUpdate(rest_seconds=10.0)
        await steady.settle([Retry(lease=leases[1], reason="again", delay=10.0), Done(lease=leases[2], lane=rest)])
        await steady.put(CRAWL, [make_task(4, "c.test")])
        assert keys(await take(steady)) == [4]
        clock.advance(9.0)
        assert keys(await take(steady)) == []
        clock.advance(1.01)
        assert sorted(keys(await take(steady))) == [1, 3]

    @pytest.mark.parametrize("verb", VERBS)
    async def test_a_step_back_is_noticed_by_whatever_changes_a_crawl(
        self, steady: Frontier, clock: FakeClock, verb: str
    ) -> None:
        """Else the crawl's time stands still until a worker asks for leases."""
        await steady.put(CRAWL, [make_task(1, delay=50.0)])
        await take(steady, 0)
        clock.step(-HOUR)
        await VERBS[verb](steady)
        clock.advance(3.0)
        assert (await steady.look_up(CRAWL, 1)).due_in == pytest.approx(47.0)

    async def test_tokens_rise_after_a_step_back(self, steady: Frontier, clock: FakeClock) -> None:
        await steady.put(CRAWL, [make_task(1), make_task(2)])
        first = await take_one(steady)
        clock.step(-HOUR)
        assert (await take_one(steady)).token > first.token

    async def test_people_see_the_time_of_day_after_a_step(self, steady: Frontier, clock: FakeClock) -> None:
        await self.begin(steady, interval=0.0, tasks=1)
        lease = await take_one(steady)
        clock.step(-HOUR)
        await steady.settle([Dead(lease=lease, reason="gone")])
        await take(steady)
        (letter,) = await steady.dead(CRAWL, DeadFilter())
        (crawl,) = await listed(steady)
        assert letter.at == pytest.approx(clock())
        assert crawl.finished == pytest.approx(clock())

    async def test_leases_that_ended_while_the_frontier_was_away_are_not_lost(
        self, steady: Frontier, other: Frontier, clock: FakeClock
    ) -> None:
        await self.begin(steady, interval=0.0, tasks=3)
        lease = await take_one(steady)
        theirs = (await take(other, 1, worker="w2")).leases
        for _ in range(4):
            clock.advance(3 * LEASE_SECONDS)
            assert await other.extend(theirs, seconds=LEASE_SECONDS) == []
            await take(other, 0, worker="w2")
            assert await steady.extend([lease], seconds=LEASE_SECONDS) == []
        await steady.settle([Done(lease=lease)])
        progress = await steady.progress(CRAWL)
        assert (progress.lost, progress.stale, progress.done) == (0, 0, 1)

    async def test_a_worker_that_died_while_the_frontier_was_away_is_noticed_one_lease_later(
        self, steady: Frontier, other: Frontier, clock: FakeClock
    ) -> None:
        await self.begin(steady, interval=0.0, tasks=1)
        await take_one(steady)
        await take(other, worker="w2")
        clock.advance(3 * LEASE_SECONDS)
        assert keys(await take(other, worker="w2")) == []
        for _ in range(5):
            clock.advance(LEASE_SECONDS / 6)
            assert keys(await take(other, worker="w2")) == []
        clock.advance(LEASE_SECONDS / 6)
        assert keys(await take(other, worker="w2")) == [0]

    async def test_short_leases_of_a_dead_worker_end_though_others_ask_about_once_a_second(
        self, steady: Frontier, other: Frontier, clock: FakeClock
    ) -> None:
        await self.begin(steady, interval=0.0, tasks=1)
        assert (await steady.lease([CRAWL], 1, worker="w1", seconds=2.0, horizon=0.0)).leases
        lent = []
        for _ in range(6):
            clock.advance(1.1)
            batch = await other.lease([CRAWL], 1, worker="w2", seconds=2.0, horizon=0.0)
            lent += keys(batch)
        assert lent[:1] == [0]

    async def test_a_worker_that_was_cut_off_alone_loses_its_leases(
        self, steady: Frontier, other: Frontier, clock: FakeClock
    ) -> None:
        await self.begin(steady, interval=0.0, tasks=1)
        lease = await take_one(steady)
        lent = []
        for _ in range(7):
            clock.advance(LEASE_SECONDS / 6)
            lent += keys(await take(other, worker="w2"))
        assert lent == [0]
        assert await steady.extend([lease], seconds=LEASE_SECONDS) == [lease]

    async def test_a_worker_that_only_renews_keeps_others_from_being_spared(
        self, steady: Frontier, other: Frontier, clock: FakeClock
    ) -> None:
        """All its slots are busy for long: that is no outage."""
        await self.begin(steady, interval=0.0, tasks=2)
        await take_one(steady)
        theirs = (await take(other, 1, worker="w2")).leases
        for _ in range(4):
            clock.advance(LEASE_SECONDS / 3)
            assert await other.extend(theirs, seconds=LEASE_SECONDS) == []
        assert keys(await take(other, worker="w2")) == [0]

    async def test_a_process_that_is_new_reclaims_what_was_left_behind_at_once(
        self, steady: Frontier, tmp_path: Path, clock: FakeClock
    ) -> None:
        await self.begin(steady, interval=0.0, tasks=1)
        await take_one(steady)
        clock.advance(LEASE_SECONDS + 1.0)
        new = await self.open(tmp_path, clock, clock.steady)
        assert keys(await take(new, worker="w2")) == [0]
        await new.close()

    async def test_a_start_that_lies_further_ahead_than_the_pace_allows_is_brought_back(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        clock.step(HOUR)
        await frontier.put(CRAWL, [make_task(1), make_task(2, "b.test")])
        await frontier.update_lane(CRAWL, "b.test", LaneUpdate(rest_seconds=120.0))
        clock.step(-HOUR)
        await take(frontier, 0)
        assert keys(await take(frontier)) == [1]
        await check_counts(frontier, queued=1, leased=1)

    async def test_a_start_that_lies_too_far_ahead_is_brought_back_in_a_paused_crawl(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        """People see when its lanes would start, and they start as soon as it is resumed."""
        clock.step(HOUR)
        await frontier.put(CRAWL, [make_task(1)])
        clock.step(-HOUR)
        await frontier.set_state(CRAWL, CrawlState.PAUSED)
        await take(frontier)
        (lane,) = await frontier.lanes(CRAWL)
        assert lane.starts_in == 0.0
        await frontier.set_state(CRAWL, CrawlState.RUNNING)
        assert keys(await take(frontier)) == [1]

    async def test_a_start_that_lies_too_far_ahead_is_brought_back_with_a_place_that_came_free(
        self, steady: Frontier, other: Frontier, clock: FakeClock
    ) -> None:
        await steady.update_lane(CRAWL, "a.test", LaneUpdate(cap=1))
        await steady.put(CRAWL, [make_task(1), make_task(2)])
        lease = await take_one(steady)
        clock.step(HOUR)
        # This process has not asked for leases before, and takes the clock for right.
        await other.reserve(CRAWL, "a.test")
        clock.advance(1.5)
        assert keys(await take(steady, landed=[lease])) == [2]
