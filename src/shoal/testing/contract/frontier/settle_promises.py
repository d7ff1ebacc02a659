"""Frontier promises about ending leases: fenced, atomic, counted, with their reasons."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec

from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import LONGEST_WHY
from shoal.model import Crawl, Dead, DeadCount, DeadFilter, Done, LaneStatus, LaneUpdate, Lease, Released, Result, Retry
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import (
    CRAWL,
    LEASE_SECONDS,
    FrontierCase,
    check_counts,
    keys,
    make_task,
    take,
    take_one,
)


def every_result(lease: Lease) -> list[Result]:
    """One result of each kind, each with something to change."""
    update = LaneUpdate(interval=77.0)
    return [
        Done(lease=lease, found=[make_task(99)], rejected={"scope": 1}, lane=update, notes={"items": 1}),
        Retry(lease=lease, reason="timeout", delay=1.0, lane=update, notes={"items": 1}),
        Dead(lease=lease, reason="gone", lane=update, notes={"items": 1}),
        Released(lease=lease, lane=update),
    ]


class SettlePromises(FrontierCase):
    """Fencing, atomicity, retries, dead letters."""

    async def test_a_lost_lease_changes_nothing(self, frontier: Frontier, second: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        old = await take_one(frontier)
        clock.advance(LEASE_SECONDS)
        new = await take_one(second)
        before = await frontier.progress(CRAWL)
        assert (await frontier.settle(every_result(old))).stale == [old] * 4
        assert await frontier.extend([old, new], seconds=5.0) == [old]
        after = await frontier.progress(CRAWL)
        assert (after.queued, after.leased, after.rejected, after.stale) == (0, 1, {}, before.stale + 4)
        assert after.notes == {}
        assert (await frontier.lanes(CRAWL))[0].interval == 0.0
        assert (await frontier.settle([Done(lease=new)])).stale == []

    async def test_a_result_sent_twice_is_stale_the_second_time(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(number) for number in range(4)])
        batch = await take(frontier)
        for index, lease in enumerate(batch.leases):
            result = every_result(lease)[index]
            assert (await frontier.settle([result])).stale == []
            counts = await frontier.progress(CRAWL)
            assert (await frontier.settle([result, result])).stale == [lease, lease]
            again = await frontier.progress(CRAWL)
            assert (again.left, again.done, again.dead, again.outcomes) == (
                counts.left,
                counts.done,
                counts.dead,
                counts.outcomes,
            )

    async def test_a_result_twice_in_one_call_counts_once(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        lease = await take_one(frontier)
        report = await frontier.settle([Done(lease=lease), Done(lease=lease)])
        assert report.stale == [lease]
        await check_counts(frontier, done=1)

    async def test_a_settle_names_the_found_tasks_that_were_known(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(number) for number in range(4)])
        first, second, third, fourth = (await take(frontier)).leases
        results = [
            Done(lease=first, found=[make_task(10), make_task(1)]),
            Done(lease=second),
            Done(lease=third, found=[make_task(10), make_task(11), make_task(12)]),
            Done(lease=fourth, found=[make_task(number) for number in range(20, 330)] + [make_task(12)]),
        ]
        known = (await frontier.settle(results)).duplicates
        expected = [
            (first.token, make_task(1).key),
            (third.token, make_task(10).key),
            (fourth.token, make_task(12).key),
        ]
        assert sorted(known) == sorted(expected)
        await check_counts(frontier, done=4, queued=313)

    async def test_found_tasks_appear_with_the_page_that_found_them(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1), make_task(2)])
        batch = await take(frontier)
        found = [make_task(1), make_task(10), make_task(11, "b.test", delay=5.0), make_task(10)]
        report = await frontier.settle([Done(lease=batch.leases[0], outcome="ok", found=found)])
        assert (report.stale, report.refused, report.failed) == ([], {}, {})
        await check_counts(frontier, queued=1, delayed=1, leased=1, done=1)
        progress = await frontier.progress(CRAWL)
        assert (progress.duplicates, progress.outcomes, progress.epoch) == (2, {"ok": 1}, report.epoch)

    async def test_two_results_that_find_the_same_task_store_it_once(
        self, frontier: Frontier, second: Frontier
    ) -> None:
        await frontier.put(CRAWL, [make_task(1), make_task(2), make_task(3)])
        one, two, three = (await take(frontier)).leases
        await asyncio.gather(
            frontier.settle([Done(lease=one, found=[make_task(9)]), Done(lease=two, found=[make_task(9)])]),
            second.settle([Done(lease=three, found=[make_task(9)])]),
        )
        await check_counts(frontier, queued=1, done=3)

    async def test_one_bad_result_does_not_stop_the_others(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(number) for number in range(4)])
        one, two, three, four = (await take(frontier)).leases
        unstorable = make_task(9, meta={"no": object()})
        results: list[Any] = [
            Done(lease=one, found=[make_task(7)]),
            Done(lease=two, found=[make_task(8), unstorable], rejected={"scope": 1}),
            "not a result",
            Retry(lease=three, reason="timeout"),
            Dead(lease=four, reason="gone"),
        ]
        report = await frontier.settle(cast(list[Result], results))
        assert sorted(report.failed) == [1, 2]
        await check_counts(frontier, queued=2, leased=1, done=1, dead=1)
        assert (await frontier.progress(CRAWL)).rejected == {}
        assert (await frontier.settle([Dead(lease=two, reason="bad result")])).stale == []

    async def test_a_free_retry_uses_up_no_attempt(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1, max_attempts=2)])
        for free_retries in range(5):
            lease = await take_one(frontier)
            assert (lease.attempt, lease.free_retries) == (1, free_retries)
            await frontier.settle([Retry(lease=lease, reason="proxy", free=True)])
        await frontier.settle([Retry(lease=await take_one(frontier), reason="timeout")])
        assert (await take_one(frontier)).attempt == 2
        assert (await frontier.progress(CRAWL)).retried == 6

    async def test_a_retry_beyond_the_last_attempt_is_a_dead_letter(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1, max_attempts=1)])
        await frontier.settle([Retry(lease=await take_one(frontier), reason="timeout: idle")])
        await check_counts(frontier, dead=1)
        assert (await frontier.progress(CRAWL)).outcomes == {"timeout": 1}

    async def test_a_released_task_is_lent_at_once_and_uses_up_no_attempt(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1, max_attempts=1), make_task(2)])
        await frontier.settle([Released(lease=await take_one(frontier))])
        lease = await take_one(frontier)
        assert (lease.task.key, lease.attempt) == (1, 1)

    async def test_a_lanes_update_comes_with_the_result(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(1), make_task(2), make_task(3)])
        batch = await take(frontier, 2)
        slower = LaneUpdate(interval=2.0, if_interval=0.0, rest_seconds=30.0)
        await frontier.settle(
            [Done(lease=batch.leases[0], lane=slower), Retry(lease=batch.leases[1], reason="429", lane=slower)]
        )
        clock.advance(29.0)
        assert (await take(frontier)).leases == []
        clock.advance(1.0)
        assert [lease.interval for lease in (await take(frontier)).leases] == [2.0]

    async def test_counts_outcomes_rejections_and_samples(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(number) for number in range(4)])
        one, two, three, four = (await take(frontier)).leases
        await frontier.settle(
            [
                Done(lease=one, rejected={"scope": 2, "depth": 1}, samples=[("scope", "https://x.test/")]),
                Done(lease=two, outcome="redirected", rejected={"scope": 1}, samples=[("scope", "https://x.test/")]),
                Dead(lease=three, reason="http: 404"),
                Dead(lease=four, reason="http: 500"),
            ]
        )
        progress = await frontier.progress(CRAWL)
        assert progress.outcomes == {"ok": 1, "redirected": 1, "http": 2}
        assert progress.rejected == {"scope": 3, "depth": 1}
        assert await frontier.samples(CRAWL, "scope") == ["https://x.test/"]

    async def test_adds_up_the_notes_of_results(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(number) for number in range(4)])
        one, two, three, four = (await take(frontier)).leases
        await frontier.settle(
            [Done(lease=one, notes={"items": 3}), Dead(lease=two, reason="gone", notes={"raised": 1})]
        )
        retry = Retry(lease=four, reason="timeout", notes={"raised": 1})
        await frontier.settle([Done(lease=three, notes={"items": 4, "follow parse é": 1}), retry])
        assert (await frontier.progress(CRAWL)).notes == {"items": 7, "raised": 2, "follow parse é": 1}

    async def test_counts_the_notes_that_several_results_share_for_those_that_stand(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(number) for number in range(4)])
        leases = (await take(frontier)).leases
        lost = msgspec.structs.replace(leases[1], token=leases[1].token - 1)
        notes = {"items": 2, "start ok": 1}
        done = [Done(lease=lease, notes=notes) for lease in (leases[0], lost, leases[2])]
        await frontier.settle([*done, Done(lease=leases[3], notes={"items": 3})])
        assert (await frontier.progress(CRAWL)).notes == {"items": 7, "start ok": 2}

    async def test_dead_letters_are_listed_by_lane_reason_time_and_key(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await self._bury_three(frontier, clock)
        letters = await frontier.dead(CRAWL, DeadFilter())
        assert [letter.task.key for letter in letters] == [3, 2, 1]
        assert (letters[2].reason, letters[2].detail, letters[2].attempts) == ("http: 404", "line", 1)
        for which, found in (
            (DeadFilter(lane="b.test"), [2]),
            (DeadFilter(reason="http"), [3, 1]),
            (DeadFilter(since=clock() - 10.0), [3, 2]),
            (DeadFilter(until=letters[1].at - 1.0), [1]),
            (DeadFilter(since=letters[1].at, until=letters[1].at), [3, 2]),
            (DeadFilter(key=2), [2]),
            (DeadFilter(key=2, until=letters[2].at), []),
            (DeadFilter(key=2, reason="http"), []),
        ):
            assert [letter.task.key for letter in await frontier.dead(CRAWL, which)] == found
            assert await frontier.count_dead(CRAWL, which) == DeadCount(matching=len(found))

    async def test_counts_the_dead_letters_of_a_filter_among_the_newest(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        for number in range(6):
            clock.advance(1.0)
            await frontier.bury(CRAWL, [(make_task(number), "odd" if number % 2 else "even")])
        odd, middle = DeadFilter(reason="odd"), DeadFilter(until=clock() - 2.0)
        for which, most, found in (
            (odd, 7, DeadCount(matching=3)),
            (odd, 6, DeadCount(matching=3)),
            (odd, 5, DeadCount(matching=3, is_least=True)),
            (odd, 2, DeadCount(matching=1, is_least=True)),
            (middle, 4, DeadCount(matching=4)),
            (middle, 3, DeadCount(matching=3, is_least=True)),
            (DeadFilter(key=0), 1, DeadCount(matching=1)),
            (DeadFilter(lane="b.test"), 9, DeadCount(matching=0)),
        ):
            assert await frontier.count_dead(CRAWL, which, most=most) == found
        assert len(await frontier.dead(CRAWL, DeadFilter(), limit=2)) == 2

    async def test_requeued_dead_letters_have_all_their_attempts_again(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await self._bury_three(frontier, clock)
        assert (await take(frontier)).finished == (CRAWL,)
        assert await frontier.requeue_dead(CRAWL, DeadFilter(reason="http")) == 2
        assert await frontier.requeue_dead(CRAWL, DeadFilter(reason="http")) == 0
        await check_counts(frontier, queued=2, dead=1)
        batch = await take(frontier)
        assert (sorted(keys(batch)), batch.finished) == ([1, 3], ())
        assert {lease.attempt for lease in batch.leases} == {1}
        assert (await frontier.progress(CRAWL)).outcomes == {"timeout": 1}

    async def test_requeues_and_drops_in_bounded_steps(self, frontier: Frontier, clock: FakeClock) -> None:
        await self._bury_three(frontier, clock)
        assert await frontier.requeue_dead(CRAWL, DeadFilter(), limit=1) == 1
        assert await frontier.drop_dead(CRAWL, DeadFilter(), limit=1) == 1
        await check_counts(frontier, queued=1, dead=1, done=1)

    async def test_dropped_dead_letters_stay_known(self, frontier: Frontier, clock: FakeClock) -> None:
        await self._bury_three(frontier, clock)
        assert await frontier.drop_dead(CRAWL, DeadFilter(lane="a.test")) == 2
        await check_counts(frontier, dead=1, done=2)
        assert (await frontier.progress(CRAWL)).outcomes == {"timeout": 1, "dropped": 2}
        assert (await frontier.put(CRAWL, [make_task(1)])).duplicates == 1

    async def _bury_three(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(1), make_task(2, "b.test"), make_task(3)])
        leases = {lease.task.key: lease for lease in (await take(frontier)).leases}
        await frontier.settle([Dead(lease=leases[1], reason="http: 404", detail="line")])
        clock.advance(20.0)
        await frontier.settle([Dead(lease=leases[2], reason="timeout"), Dead(lease=leases[3], reason="http: 500")])


async def lane_of(frontier: Frontier, name: str = "a.test") -> LaneStatus:
    """The lane as it is shown; it has a waiting task from the first call on."""
    await frontier.put(CRAWL, [make_task(1, name), make_task(2, name)])
    return next(lane for lane in await frontier.lanes(CRAWL) if lane.lane == name)


class ReasonPromises(FrontierCase):
    """Reasons of a changed pace."""

    async def test_a_lane_tells_why_it_rests_until_the_rest_is_over(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        await lane_of(frontier)
        rest = LaneUpdate(rest_seconds=30.0, why="429, asked to wait é")
        await frontier.settle([Retry(lease=await take_one(frontier), reason="429", lane=rest)])
        lane = await lane_of(second)
        assert (lane.why, lane.rests_for) == ("429, asked to wait é", 30.0)
        clock.advance(29.0)
        assert (await lane_of(second)).why == "429, asked to wait é"
        clock.advance(1.0)
        lane = await lane_of(second)
        assert (lane.why, lane.rests_for) == ("", 0.0)

    async def test_the_rest_that_lasts_longer_gives_the_reason(self, frontier: Frontier) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(rest_seconds=30.0, why="the long one"))
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(rest_seconds=20.0, why="a shorter one"))
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=2.0, why="a slow-down meanwhile"))
        assert (await lane_of(frontier)).why == "the long one"
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(rest_seconds=40.0))
        assert (await lane_of(frontier)).why == ""

    async def test_a_lane_tells_why_it_is_slow_until_it_is_back_at_its_own_pace(self, frontier: Frontier) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=2.0, if_interval=0.0, why="after 3 failures"))
        assert (await lane_of(frontier)).why == "after 3 failures"
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=4.0, if_interval=3.0, why="too late: stale"))
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=1.0, if_interval=2.0, why="faster again"))
        assert (await lane_of(frontier)).why == "after 3 failures"
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=0.0, if_interval=1.0))
        assert (await lane_of(frontier)).why == ""

    async def test_a_lane_that_is_faster_than_its_own_pace_tells_why_until_it_is_back(self, frontier: Frontier) -> None:
        own = LaneUpdate(interval=4.0, base_interval=4.0)
        await frontier.update_lane(CRAWL, "a.test", own)
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=3.0, if_interval=4.0, why="knee near 0.4/s"))
        assert (await lane_of(frontier)).why == "knee near 0.4/s"
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=2.0, if_interval=4.0, why="too late: stale"))
        assert (await lane_of(frontier)).why == "knee near 0.4/s"
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=2.5, if_interval=3.0))
        assert (await lane_of(frontier)).why == ""
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=3.0, if_interval=2.5, why="held below it"))
        assert (await lane_of(frontier)).why == "held below it"
        await frontier.update_lane(CRAWL, "a.test", own)
        assert (await lane_of(frontier)).why == ""

    async def test_a_lane_tells_why_its_own_pace_is_what_it_is(self, frontier: Frontier) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=9.0, base_interval=9.0, why="Crawl-delay 9 s"))
        lane = await lane_of(frontier)
        assert (lane.why, lane.pace_why) == ("", "Crawl-delay 9 s")
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(rest_seconds=30.0, why="429"))
        lane = await lane_of(frontier)
        assert (lane.why, lane.pace_why) == ("429", "Crawl-delay 9 s")
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=0.0, base_interval=0.0))
        assert (await lane_of(frontier)).pace_why == ""

    async def test_keeps_the_beginning_of_a_long_reason(self, frontier: Frontier) -> None:
        long = "é" * (LONGEST_WHY + 1)
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(rest_seconds=30.0, base_interval=1.0, why=long))
        lane = await lane_of(frontier)
        assert (lane.why, lane.pace_why) == (long[:-1], long[:-1])

    async def test_each_lane_has_reasons_of_its_own_and_a_new_crawl_has_none(self, frontier: Frontier) -> None:
        for name in ("a.test", "b.test"):
            update = LaneUpdate(rest_seconds=30.0, base_interval=1.0, why=f"because of {name}")
            await frontier.update_lane(CRAWL, name, update)
        assert (await lane_of(frontier)).why == "because of a.test"
        await frontier.delete_crawl(CRAWL)
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s"))
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(rest_seconds=30.0, interval=0.0))
        lane = await lane_of(frontier)
        assert (lane.why, lane.pace_why) == ("", "")
