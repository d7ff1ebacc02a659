"""Frontier promises about stopping, cancelling and resuming crawls, and about tasks that are held."""

from __future__ import annotations

import msgspec
import pytest

from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import WORKERS_KEPT
from shoal.model import Crawl, CrawlState, Dead, Done, Heartbeat, Held, LaneUpdate, Released, Retry, TaskState
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
from shoal.testing.contract.frontier.host_case import ONE, TWO, ask, begin


def beat_of(worker: str, *, crawl: str = CRAWL, pages: int = 0, left: float = 0.0) -> Heartbeat:
    return Heartbeat(worker=worker, crawl=crawl, host="h", pid=1, version="1", slots=8, pages=pages, left=left)


class ControlPromises(FrontierCase):
    """Pause, cancel, finish, delete."""

    async def test_a_paused_crawl_lends_nothing_and_still_takes_results(
        self, frontier: Frontier, second: Frontier
    ) -> None:
        await frontier.put(CRAWL, [make_task(1), make_task(2)])
        lease = await take_one(frontier)
        await second.set_state(CRAWL, CrawlState.PAUSED)
        assert (await take(frontier)).leases == []
        assert (await frontier.settle([Done(lease=lease, found=[make_task(3)])])).stale == []
        await check_counts(frontier, queued=2, done=1)
        await second.set_state(CRAWL, CrawlState.RUNNING)
        assert keys(await take(frontier)) == [2, 3]

    async def test_a_crawl_tells_why_it_was_paused_until_it_runs_again(
        self, frontier: Frontier, second: Frontier
    ) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        await frontier.set_state(CRAWL, CrawlState.PAUSED, reason="parse fails")
        await second.set_state(CRAWL, CrawlState.PAUSED)
        assert (await second.progress(CRAWL)).reason == "parse fails"
        await second.set_state(CRAWL, CrawlState.RUNNING)
        assert (await frontier.progress(CRAWL)).reason == ""
        await second.set_state(CRAWL, CrawlState.PAUSED)
        assert (await frontier.progress(CRAWL)).reason == ""

    async def test_an_empty_paused_crawl_is_not_finished(self, frontier: Frontier) -> None:
        await frontier.set_state(CRAWL, CrawlState.PAUSED)
        assert (await take(frontier)).finished == ()

    async def test_a_cancelled_crawl_counts_its_waiting_tasks_as_cancelled(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(number) for number in range(5)] + [make_task(5, delay=9.0)])
        leases = (await take(frontier, 4)).leases
        await frontier.set_state(CRAWL, CrawlState.CANCELLED)
        await check_counts(frontier, leased=4, cancelled=2)
        assert (await take(frontier)).finished == ()
        await frontier.settle(
            [
                Done(lease=leases[0], found=[make_task(9)]),
                Retry(lease=leases[1], reason="timeout", delay=3.0),
                Released(lease=leases[2]),
            ]
        )
        await check_counts(frontier, leased=1, done=1, cancelled=5)
        clock.advance(LEASE_SECONDS)
        batch = await take(frontier)
        assert (batch.leases, batch.finished) == ([], (CRAWL,))
        await check_counts(frontier, done=1, cancelled=6)
        assert (await frontier.look_up(CRAWL, 9)).state == TaskState.CANCELLED
        assert (await frontier.progress(CRAWL)).state == CrawlState.CANCELLED

    async def test_a_cancelled_crawl_that_is_resumed_goes_on_as_before(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(1), make_task(2, "b.test"), make_task(3, delay=9.0)])
        await frontier.set_state(CRAWL, CrawlState.CANCELLED)
        await frontier.set_state(CRAWL, CrawlState.RUNNING)
        await check_counts(frontier, queued=2, delayed=1)
        assert sorted(keys(await take(frontier))) == [1, 2]
        clock.advance(9.0)
        assert keys(await take(frontier)) == [3]

    async def test_the_lanes_of_a_cancelled_crawl_are_those_in_use_the_busiest_first(self, frontier: Frontier) -> None:
        lanes = ["a.test", "b.test", "c.test", "d.test"]
        tasks = [make_task(number, lane) for number, lane in enumerate(lanes)]
        await frontier.put(CRAWL, [*tasks, make_task(10, "c.test")])
        assert len((await take(frontier, horizon=60.0)).leases) == 5
        await frontier.put(CRAWL, [make_task(number, "d.test") for number in range(20, 25)])
        await frontier.set_state(CRAWL, CrawlState.CANCELLED)
        found = [(lane.lane, lane.waiting, lane.in_flight) for lane in await frontier.lanes(CRAWL)]
        assert found[0] == ("c.test", 0, 2)
        assert sorted(found[1:]) == [("a.test", 0, 1), ("b.test", 0, 1), ("d.test", 0, 1)]

    async def test_is_finished_exactly_when_nothing_is_left(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(1), make_task(2, delay=5.0)])
        lease = await take_one(frontier)
        assert not (await frontier.progress(CRAWL)).is_finished
        await frontier.settle([Done(lease=lease)])
        assert (await take(frontier)).finished == ()
        clock.advance(5.0)
        lease = await take_one(frontier)
        assert (await take(frontier)).finished == ()
        await frontier.settle([Dead(lease=lease, reason="gone")])
        assert (await frontier.progress(CRAWL)).is_finished
        assert (await take(frontier)).finished == (CRAWL,)
        assert (await take(frontier)).finished == (CRAWL,)
        crawl = (await listed(frontier))[0]
        assert (crawl.state, crawl.finished) == (CrawlState.FINISHED, clock())

    async def test_a_crawl_cannot_be_declared_finished(self, frontier: Frontier) -> None:
        with pytest.raises(UsageError, match="finishes by itself"):
            await frontier.set_state(CRAWL, CrawlState.FINISHED)
        await take(frontier)
        await frontier.set_state(CRAWL, CrawlState.PAUSED)
        assert (await take(frontier)).finished == (CRAWL,)

    async def test_crawls_do_not_see_each_other(self, frontier: Frontier) -> None:
        await frontier.open_crawl(Crawl(id="other", spider="s", interval=5.0, pace_scope="crawl"))
        await frontier.put(CRAWL, [make_task(1)])
        assert (await frontier.put("other", [make_task(1), make_task(2)])).new == 2
        await frontier.update_lane("other", "a.test", LaneUpdate(rest_seconds=99.0, rules=b"x", rules_seconds=9.0))
        assert await frontier.rules(CRAWL, "a.test") == (0, b"")
        batch = await take(frontier)
        assert [(lease.crawl, lease.task.key) for lease in batch.leases] == [(CRAWL, 1)]
        await frontier.settle([Done(lease=batch.leases[0], rejected={"scope": 1}, samples=[("scope", "https://x/")])])
        other = await frontier.progress("other")
        assert (other.queued, other.done, other.rejected) == (2, 0, {})
        assert await frontier.samples("other", "scope") == []

    async def test_one_call_can_lease_from_several_crawls(self, frontier: Frontier) -> None:
        await frontier.open_crawl(Crawl(id="other", spider="s", interval=0.0))
        await frontier.put(CRAWL, [make_task(number) for number in range(50)])
        await frontier.put("other", [make_task(1, "b.test")])
        batch = await frontier.lease([CRAWL, "other", CRAWL], 8, worker="w", seconds=60.0, horizon=0.0)
        assert sorted(lease.crawl for lease in batch.leases) == [CRAWL] * 7 + ["other"]
        report = await frontier.settle([Done(lease=lease) for lease in batch.leases])
        assert (report.stale, report.epoch) == ([], batch.epoch)
        assert (await frontier.progress(CRAWL)).done == 7
        batch = await frontier.lease([CRAWL, "other"], 8, worker="w", seconds=60.0, horizon=0.0)
        assert batch.finished == ("other",)

    async def test_a_deleted_crawl_leaves_nothing_behind(self, frontier: Frontier, second: Frontier) -> None:
        await frontier.open_crawl(Crawl(id="other", spider="s", interval=0.0))
        await frontier.put("other", [make_task(1)])
        await frontier.put(CRAWL, [make_task(1), make_task(2)])
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=99.0, rules=b"x", rules_seconds=9.0))
        await frontier.put(CRAWL, [make_task(3, "b.test")], rejected={"scope": 1}, samples=[("scope", "https://x/")])
        lease = await take_one(frontier)
        epoch = (await frontier.progress(CRAWL)).epoch
        await second.delete_crawl(CRAWL)
        await second.delete_crawl(CRAWL)
        assert [crawl.id for crawl in await listed(frontier)] == ["other"]
        assert (await take(frontier)).finished == (CRAWL,)
        assert (await frontier.settle([Done(lease=lease)])).stale == [lease]
        assert await frontier.extend([lease], seconds=1.0) == [lease]
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0))
        assert (await frontier.progress(CRAWL)).known == 0
        assert (await frontier.progress(CRAWL)).rejected == {}
        assert await frontier.samples(CRAWL, "scope") == []
        assert await frontier.rules(CRAWL, "a.test") == (0, b"")
        assert (await frontier.progress(CRAWL)).epoch != epoch
        assert (await frontier.put(CRAWL, [make_task(1)])).new == 1
        assert keys(await take(frontier)) == [1]
        assert (await frontier.progress("other")).queued == 1

    async def test_lists_busy_lanes_most_waiting_first(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(1, "a.test"), make_task(2, "b.test"), make_task(3, "b.test")])
        await frontier.put(CRAWL, [make_task(4, "done.test")])
        leases = {lease.task.key: lease for lease in (await take(frontier)).leases}
        await frontier.settle([Done(lease=leases[4]), Released(lease=leases[2]), Released(lease=leases[3])])
        await frontier.update_lane(CRAWL, "b.test", LaneUpdate(rest_seconds=5.0))
        lanes = await frontier.lanes(CRAWL)
        assert [(lane.lane, lane.waiting, lane.in_flight, lane.known) for lane in lanes] == [
            ("b.test", 2, 0, 2),
            ("a.test", 0, 1, 1),
        ]
        assert lanes[0].starts_in == 5.0
        assert len(await frontier.lanes(CRAWL, limit=1)) == 1

    async def test_pages_through_busy_lanes_and_finds_them_by_name(self, frontier: Frontier) -> None:
        names = [f"{'shop' if number % 3 else 'blog'}-{number}.test" for number in range(12)]
        tasks = [make_task(100 * n + m, name) for n, name in enumerate(names) for m in range(12 - n)]
        await frontier.put(CRAWL, tasks)
        pages = [await frontier.lanes(CRAWL, limit=5, skip=skip) for skip in (0, 5, 10, 15)]
        assert [lane.lane for page in pages for lane in page] == names
        assert [len(page) for page in pages] == [5, 5, 2, 0]
        blogs = [name for name in names if name.startswith("blog")]
        assert [lane.lane for lane in await frontier.lanes(CRAWL, search="blog-")] == blogs
        assert [lane.lane for lane in await frontier.lanes(CRAWL, search="blog-", limit=2, skip=1)] == blogs[1:3]
        assert [lane.lane for lane in await frontier.lanes(CRAWL, search="p-4.t")] == ["shop-4.test"]
        for nothing in ("BLOG", "b.og", "%", "blog-0.test "):
            assert await frontier.lanes(CRAWL, search=nothing) == []

    async def test_pages_through_the_lanes_of_a_cancelled_crawl(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(number, f"{number}.test") for number in range(4)])
        await take(frontier)
        await frontier.set_state(CRAWL, CrawlState.CANCELLED)
        pages = [await frontier.lanes(CRAWL, limit=3, skip=skip) for skip in (0, 3)]
        assert sorted(lane.lane for page in pages for lane in page) == [f"{number}.test" for number in range(4)]

    async def test_a_lane_whose_cap_is_zero_lends_nothing_until_it_has_one_again(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1, "a.test"), make_task(2, "b.test")])
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(cap=0))
        assert keys(await take(frontier)) == [2]
        assert [(lane.lane, lane.cap) for lane in await frontier.lanes(CRAWL, search="a.")] == [("a.test", 0)]
        assert keys(await take(frontier)) == []
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(cap=8))
        assert keys(await take(frontier)) == [1]

    async def test_shows_a_lanes_pace_and_the_pace_to_which_it_returns(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1, "a.test")])
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=3.0, base_interval=3.0))
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=6.0))
        (lane,) = await frontier.lanes(CRAWL)
        assert (lane.interval, lane.base_interval, lane.waits_for_exit) == (6.0, 3.0, False)

    async def test_knows_the_workers_that_are_alive(self, frontier: Frontier, clock: FakeClock) -> None:
        sign = Heartbeat(worker="w1", crawl=CRAWL, host="h", pid=1, version="1", slots=8, kinds=("eu",), code="0f")
        sign = msgspec.structs.replace(sign, offers={"region:eu@fra-1": 3})
        await frontier.beat(sign)
        (kept,) = await frontier.workers()
        assert (kept.kinds, kept.code, kept.offers) == (("eu",), "0f", {"region:eu@fra-1": 3})
        clock.advance(30.0)
        await frontier.beat(Heartbeat(worker="w2", crawl=CRAWL, host="h", pid=2, version="1", slots=8, busy=3))
        assert [beat.worker for beat in await frontier.workers()] == ["w1", "w2"]
        alive = await frontier.workers(within=10.0)
        assert [(beat.worker, beat.busy, beat.seen) for beat in alive] == [("w2", 3, clock())]
        await frontier.delete_crawl(CRAWL)
        assert await frontier.workers() == []
        assert await frontier.workers_of(CRAWL) == []

    async def test_a_crawl_keeps_the_last_signs_of_workers_that_left_or_were_lost(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.beat(beat_of("lost", pages=3))
        await frontier.beat(beat_of("elsewhere", crawl="other"))
        await frontier.beat(beat_of("left", pages=7))
        clock.advance(5.0)
        await frontier.beat(beat_of("left", pages=9, left=clock()))
        assert [beat.worker for beat in await frontier.workers()] == ["elsewhere", "lost"]
        clock.advance(30 * 86_400.0)
        await frontier.beat(beat_of("new"))
        kept = await frontier.workers_of(CRAWL)
        assert [(beat.worker, beat.pages, bool(beat.left)) for beat in kept] == [
            ("new", 0, False),
            ("left", 9, True),
            ("lost", 3, False),
        ]
        assert clock() - kept[-1].seen == pytest.approx(30 * 86_400.0 + 5.0)
        assert [beat.worker for beat in await frontier.workers(within=60.0)] == ["new"]

    async def test_a_crawl_keeps_a_bounded_number_of_workers_the_latest_ones(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        for number in range(WORKERS_KEPT + 5):
            await frontier.beat(beat_of(f"w{number}", left=clock()))
            clock.advance(1.0)
        kept = [beat.worker for beat in await frontier.workers_of(CRAWL)]
        assert (len(kept), kept[0], kept[-1]) == (WORKERS_KEPT, f"w{WORKERS_KEPT + 4}", "w5")


async def held(frontier: Frontier, crawl: str) -> Held | None:
    """What holds back the only lane of the crawl."""
    (lane,) = await frontier.lanes(crawl)
    return lane.held


class HeldPromises(FrontierCase):
    """One host, several crawls, and what is shown of it."""

    async def test_a_lane_that_no_other_crawl_holds_back_says_so(self, frontier: Frontier) -> None:
        await begin(frontier, ONE, interval=9.0)
        assert await held(frontier, ONE) is None
        await begin(frontier, TWO, interval=1.0)
        # The other crawl has not asked for leases.
        assert await held(frontier, TWO) is None
        await ask(frontier, ONE)
        assert await held(frontier, TWO) is not None
        await frontier.delete_crawl(ONE)
        assert await held(frontier, TWO) is None

    async def test_a_lane_tells_which_crawl_takes_turns_with_it(self, frontier: Frontier) -> None:
        for name in (ONE, TWO):
            await begin(frontier, name, interval=1.0)
        await ask(frontier, ONE)
        assert await held(frontier, TWO) == Held(crawl=ONE, by="turn", interval=1.0, turns=1)

    async def test_a_lane_tells_which_crawl_is_slower(self, frontier: Frontier) -> None:
        await begin(frontier, ONE, interval=4.0)
        await begin(frontier, TWO, interval=1.0)
        await ask(frontier, ONE)
        assert await held(frontier, TWO) == Held(crawl=ONE, by="pace", interval=4.0, turns=1)
        found = await held(frontier, ONE)
        assert found is None or found.by == "turn"

    async def test_a_lane_tells_which_crawls_requests_leave_no_room(self, frontier: Frontier) -> None:
        await begin(frontier, ONE, cap=2)
        await begin(frontier, TWO, cap=9)
        await ask(frontier, ONE)
        found = await held(frontier, TWO)
        assert found is not None
        assert (found.crawl, found.by) == (ONE, "cap")

    async def test_a_lane_tells_which_crawl_was_asked_to_wait(self, frontier: Frontier, clock: FakeClock) -> None:
        await begin(frontier, ONE)
        await begin(frontier, TWO)
        await frontier.update_lane(ONE, "a.test", LaneUpdate(rest_seconds=30.0))
        clock.advance(10.0)
        assert await held(frontier, TWO) == Held(crawl=ONE, by="rest", seconds=20.0)
        assert await held(frontier, ONE) is None

    async def test_a_lane_tells_which_crawl_fetches_its_rules(self, frontier: Frontier) -> None:
        await begin(frontier, ONE, needs_rules=True)
        await begin(frontier, TWO, needs_rules=True)
        await ask(frontier, ONE)
        found = await held(frontier, TWO)
        assert found is not None
        assert (found.crawl, found.by) == (ONE, "rules")

    async def test_a_crawl_whose_pace_is_its_own_holds_nobody_back(self, frontier: Frontier) -> None:
        await begin(frontier, ONE, interval=9.0)
        await begin(frontier, TWO, interval=9.0, pace_scope="crawl")
        for name in (ONE, TWO):
            await ask(frontier, name)
            assert await held(frontier, name) is None
