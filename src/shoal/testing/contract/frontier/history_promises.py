"""Frontier promises about the history of crawls, and about duties, each of which has one holder."""

from __future__ import annotations

import msgspec
import pytest

from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import (
    LONG_POINT_SECONDS,
    LONG_POINTS_KEPT_SECONDS,
    POINT_SECONDS,
    POINTS_KEPT_SECONDS,
)
from shoal.model import Crawl, Figures, Point
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import CRAWL, FrontierCase
from shoal.testing.contract.frontier.control_promises import beat_of

DAY = 86_400.0
DUTY = "alerts"


def point_of(done: int) -> Point:
    return Point(
        queued=1,
        delayed=2,
        leased=3,
        done=done,
        dead=4,
        retried=5,
        lost=6,
        outcomes={"ok": done, "http_404": 1},
        fetch_times=(0, 1, 2),
        received_bytes=2**40,
        workers=2,
        cost=0.125,
    )


async def keep_some(frontier: Frontier, clock: FakeClock, number: int, *, every: float) -> None:
    """Write this many points, the last one now."""
    for done in range(number):
        if done:
            clock.advance(every)
        await frontier.keep_point(CRAWL, point_of(done))


async def done_of(frontier: Frontier, *, seconds: float, most: int = 500) -> list[int]:
    return [point.done for point in await frontier.points(CRAWL, seconds=seconds, most=most)]


class HistoryPromises(FrontierCase):
    """Points written and read, duties taken and released."""

    async def write_unreadable_point(self, frontier: Frontier, crawl: str) -> None:
        """Replace the latest point of the crawl by undecodable bytes. Only a backend can do that."""
        pytest.skip("this frontier keeps no bytes that could be damaged, or its test does not say how")

    async def test_a_point_is_read_as_it_was_kept_with_the_time_of_the_frontier(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        assert await frontier.keep_point(CRAWL, msgspec.structs.replace(point_of(7), at=5.0))
        kept_at = clock()
        clock.advance(60.0)
        (point,) = await second.points(CRAWL, seconds=60.0)
        assert point == msgspec.structs.replace(point_of(7), at=kept_at)
        assert await second.points(CRAWL, seconds=59.0) == []

    async def test_the_latest_of_several_points_in_ten_seconds_is_kept(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        clock.advance(POINT_SECONDS - clock() % POINT_SECONDS)
        assert await frontier.keep_point(CRAWL, point_of(1))
        clock.advance(POINT_SECONDS - 1.0)
        assert not await second.keep_point(CRAWL, point_of(2))
        assert await done_of(frontier, seconds=DAY) == [2]
        clock.advance(1.0)
        assert await frontier.keep_point(CRAWL, point_of(3))
        assert await done_of(second, seconds=DAY) == [2, 3]

    async def test_points_of_a_day_are_kept_and_longer_one_of_five_minutes(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        clock.advance(LONG_POINT_SECONDS - clock() % LONG_POINT_SECONDS)
        await keep_some(frontier, clock, 90, every=POINT_SECONDS)
        began = clock()
        assert await done_of(frontier, seconds=DAY) == list(range(90))
        clock.advance(POINTS_KEPT_SECONDS + LONG_POINT_SECONDS)
        await frontier.keep_point(CRAWL, point_of(1000))
        assert await done_of(frontier, seconds=3 * DAY) == [29, 59, 89, 1000]
        clock.advance(began + LONG_POINTS_KEPT_SECONDS - clock() - LONG_POINT_SECONDS)
        await frontier.keep_point(CRAWL, point_of(2000))
        assert await done_of(frontier, seconds=60 * DAY) == [59, 89, 1000, 2000]
        clock.advance(2 * DAY)
        await frontier.keep_point(CRAWL, point_of(3000))
        assert await done_of(frontier, seconds=60 * DAY) == [2000, 3000]

    async def test_the_history_of_a_crawl_that_rests_is_kept_until_it_goes_on(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await keep_some(frontier, clock, 20, every=POINT_SECONDS)
        clock.advance(90 * DAY)
        assert await done_of(frontier, seconds=DAY) == []
        assert await done_of(frontier, seconds=91 * DAY) == list(range(20))

    async def test_many_points_are_thinned_evenly_over_the_time(self, frontier: Frontier, clock: FakeClock) -> None:
        await keep_some(frontier, clock, 101, every=POINT_SECONDS)
        assert await done_of(frontier, seconds=DAY, most=101) == list(range(101))
        assert await done_of(frontier, seconds=DAY, most=10) == [9, 19, 29, 39, 49, 59, 69, 79, 89, 100]
        assert await done_of(frontier, seconds=200.0, most=4) == [84, 89, 94, 100]
        assert await done_of(frontier, seconds=DAY, most=1) == [100]
        assert await done_of(frontier, seconds=DAY, most=0) == []

    async def test_points_of_long_and_of_short_steps_are_thinned_together(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        clock.advance(LONG_POINT_SECONDS - clock() % LONG_POINT_SECONDS)
        await keep_some(frontier, clock, 10, every=LONG_POINT_SECONDS)
        clock.advance(POINTS_KEPT_SECONDS - 5 * LONG_POINT_SECONDS)
        await frontier.keep_point(CRAWL, point_of(10))
        assert await done_of(frontier, seconds=30 * DAY) == list(range(11))
        assert await done_of(frontier, seconds=30 * DAY, most=10) == [9, 10]
        assert await done_of(frontier, seconds=30 * DAY, most=100) == list(range(11))

    async def test_points_that_cannot_be_read_are_left_out(self, frontier: Frontier, clock: FakeClock) -> None:
        await keep_some(frontier, clock, 3, every=POINT_SECONDS)
        await self.write_unreadable_point(frontier, CRAWL)
        assert await done_of(frontier, seconds=DAY) == [0, 1]
        clock.advance(POINT_SECONDS)
        assert await frontier.keep_point(CRAWL, point_of(9))
        assert await done_of(frontier, seconds=DAY) == [0, 1, 9]

    async def test_crawls_have_each_their_own_history_which_goes_with_them(
        self, frontier: Frontier, second: Frontier
    ) -> None:
        await frontier.open_crawl(Crawl(id="other", spider="s"))
        await frontier.keep_point(CRAWL, point_of(1))
        await second.keep_point("other", point_of(2))
        await frontier.delete_crawl(CRAWL)
        with pytest.raises(UsageError, match="no crawl"):
            await frontier.points(CRAWL, seconds=DAY)
        with pytest.raises(UsageError, match="no crawl"):
            await frontier.keep_point(CRAWL, point_of(3))
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s"))
        assert await frontier.points(CRAWL, seconds=DAY) == []
        assert [point.done for point in await frontier.points("other", seconds=DAY)] == [2]

    async def test_a_sign_of_life_carries_figures(self, frontier: Frontier, second: Frontier) -> None:
        figures = Figures(fetches=3, fetch_times=(1, 2), statuses={"2xx": 3}, cpu_seconds=0.5, received_bytes=2**40)
        await frontier.beat(msgspec.structs.replace(beat_of("w"), figures=figures))
        (beat,) = await second.workers_of(CRAWL)
        assert beat.figures == figures

    async def test_a_duty_has_one_holder_who_keeps_it_by_saying_so(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        assert (await frontier.hold_duty(DUTY, "a", seconds=30.0))[:2] == (True, b"")
        assert (await second.hold_duty(DUTY, "b", seconds=30.0))[:2] == (False, b"")
        assert (await second.hold_duty("another", "b", seconds=30.0))[:2] == (True, b"")
        clock.advance(20.0)
        assert (await frontier.hold_duty(DUTY, "a", seconds=30.0))[:2] == (True, b"")
        clock.advance(20.0)
        assert (await second.hold_duty(DUTY, "b", seconds=30.0))[:2] == (False, b"")
        clock.advance(10.0)
        assert (await second.hold_duty(DUTY, "b", seconds=30.0))[:2] == (True, b"")
        assert (await frontier.hold_duty(DUTY, "a", seconds=30.0))[:2] == (False, b"")

    async def test_what_the_holder_of_a_duty_notes_goes_to_the_next_one(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        notes = bytes(range(256))
        assert (await frontier.hold_duty(DUTY, "a", seconds=30.0, notes=notes))[:2] == (True, notes)
        assert (await second.hold_duty(DUTY, "b", seconds=30.0, notes=b"of b"))[:2] == (False, notes)
        assert (await frontier.hold_duty(DUTY, "a", seconds=30.0))[:2] == (True, notes)
        clock.advance(30.0)
        assert (await second.hold_duty(DUTY, "b", seconds=30.0))[:2] == (True, notes)
        assert (await second.hold_duty(DUTY, "b", seconds=30.0, notes=b""))[:2] == (True, b"")

    async def test_a_duty_that_is_given_up_is_free_at_once(self, frontier: Frontier, second: Frontier) -> None:
        await frontier.hold_duty(DUTY, "a", seconds=30.0, notes=b"noted")
        assert (await second.hold_duty(DUTY, "b", seconds=0.0))[:2] == (False, b"noted")
        assert (await second.hold_duty(DUTY, "b", seconds=30.0))[:2] == (False, b"noted")
        await frontier.hold_duty(DUTY, "a", seconds=0.0)
        assert (await second.hold_duty(DUTY, "b", seconds=30.0))[:2] == (True, b"noted")

    async def test_a_clock_that_is_set_back_leaves_no_duty_to_a_holder_that_is_gone(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        await frontier.hold_duty(DUTY, "a", seconds=30.0)
        clock.step(-3600.0)
        assert (await second.hold_duty(DUTY, "b", seconds=30.0))[:2] == (True, b"")
        assert (await frontier.hold_duty(DUTY, "a", seconds=30.0))[:2] == (False, b"")

    async def test_notes_of_a_holder_that_another_has_relieved_are_refused_also_if_the_duty_is_free_again(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        first = await frontier.hold_duty(DUTY, "a", seconds=30.0, notes=b"of a")
        clock.advance(31.0)
        later = await second.hold_duty(DUTY, "b", seconds=30.0, notes=b"of b")
        assert later.term > first.term
        await second.hold_duty(DUTY, "b", seconds=0.0)
        late = await frontier.hold_duty(DUTY, "a", seconds=30.0, notes=b"late", term=first.term)
        assert late == (False, b"of b", later.term)
        # Not taken either: a renewal would be another term.
        assert await frontier.hold_duty(DUTY, "a", seconds=30.0, term=first.term) == late
        assert (await second.hold_duty(DUTY, "c", seconds=30.0)).is_ours

    async def test_a_holder_that_took_its_time_goes_on_if_nobody_relieved_it(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        held = await frontier.hold_duty(DUTY, "a", seconds=30.0)
        clock.advance(31.0)
        assert (await second.hold_duty(DUTY, "reader", seconds=0.0)).is_ours
        again = await frontier.hold_duty(DUTY, "a", seconds=30.0, notes=b"slow", term=held.term)
        assert again == (True, b"slow", held.term)

    async def test_a_duty_that_comes_back_to_a_former_holder_is_a_new_term(
        self, frontier: Frontier, second: Frontier
    ) -> None:
        terms = []
        for holder in ("a", "b", "a"):
            terms.append((await frontier.hold_duty(DUTY, holder, seconds=30.0)).term)
            await frontier.hold_duty(DUTY, holder, seconds=0.0)
        assert terms == sorted(set(terms))
        stale = await second.hold_duty(DUTY, "a", seconds=0.0, notes=b"stale", term=terms[0])
        assert stale == (False, b"", terms[2])

    async def test_who_looks_at_a_duty_without_taking_it_changes_nothing(
        self, frontier: Frontier, second: Frontier
    ) -> None:
        before = await frontier.hold_duty(DUTY, "reader", seconds=0.0)
        assert before[:2] == (True, b"")
        assert await second.hold_duty(DUTY, "another", seconds=0.0) == before
