"""Frontier promises about lost leases, and about what deleted and finished crawls leave behind."""

from __future__ import annotations

import pytest

from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import LEARNT_SECONDS, SUSPECT_LOSSES
from shoal.model import Crawl, Dead, DeadFilter, Done, LaneUpdate, Lease, Released, Result, Retry, TaskState
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
from shoal.testing.contract.frontier.host_case import LANES_OF_SEVERAL_STEPS, ONE, TWO, VIA_POOL, ask, begin, make_pool

OTHER = "other"


async def make_suspect(frontier: Frontier, lease: Lease, *, worker: str = "w1") -> None:
    """The worker dies in the handler of this lease's page."""
    assert await frontier.evict(worker, suspects=[lease.token]) > 0


class LostPromises(FrontierCase):
    """Leases lost together are free; suspects are leased alone, and a loss uses an attempt."""

    async def test_a_lease_lost_in_company_is_free_of_charge(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(1, max_attempts=1), make_task(2, max_attempts=1)])
        await take(frontier)
        clock.advance(LEASE_SECONDS)
        batch = await take(frontier)
        assert [(lease.task.key, lease.attempt, lease.alone) for lease in batch.leases] == [
            (1, 1, False),
            (2, 1, False),
        ]
        assert await frontier.evict("w1") == 2
        status = await frontier.look_up(CRAWL, 1)
        assert (status.state, status.attempts, status.losses) == (TaskState.QUEUED, 0, 2)
        assert (await frontier.progress(CRAWL)).lost == 4

    async def test_a_task_lost_twice_in_a_row_is_lent_alone(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(number) for number in range(3)])
        for _ in range(SUSPECT_LOSSES):
            assert len((await take(frontier)).leases) == 3
            await frontier.evict("w1")
        lent = [await take(frontier) for _ in range(4)]
        assert [keys(batch) for batch in lent] == [[0], [1], [2], []]
        assert [(lease.alone, lease.attempt) for batch in lent for lease in batch.leases] == [(True, 1)] * 3
        status = await frontier.look_up(CRAWL, 1)
        assert (status.state, status.losses) == (TaskState.LEASED, SUSPECT_LOSSES)

    async def test_the_page_whose_handler_ran_is_a_suspect_at_once(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(number) for number in range(4)])
        held = await take(frontier)
        assert await frontier.evict("w1", suspects=[held.leases[2].token], cause="SIGSEGV") == 4
        # The others are leased together, up to the suspect.
        batches = [await take(frontier) for _ in range(3)]
        assert [keys(batch) for batch in batches] == [[0, 1], [2], [3]]
        assert [lease.alone for batch in batches for lease in batch.leases] == [False, False, True, False]
        assert {lease.attempt for batch in batches for lease in batch.leases} == {1}

    async def test_one_page_that_kills_buries_no_neighbour(self, frontier: Frontier) -> None:
        """The worker dies whenever it has page 7; the handler is not known."""
        await frontier.put(CRAWL, [make_task(number, max_attempts=3) for number in range(20)])
        deaths = 0
        while not (batch := await take(frontier, 8)).finished:
            if 7 in keys(batch):
                deaths += 1
                await frontier.evict("w1", cause="SIGKILL")
            else:
                assert (await frontier.settle([Done(lease=lease) for lease in batch.leases])).stale == []
        (letter,) = await frontier.dead(CRAWL, DeadFilter())
        assert (letter.task.key, letter.reason, letter.attempts) == (7, "worker lost: SIGKILL", 3)
        assert deaths == SUSPECT_LOSSES + 3
        await check_counts(frontier, done=19, dead=1)

    async def test_a_lease_lost_alone_uses_its_attempt_up(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1, max_attempts=2)])
        await make_suspect(frontier, await take_one(frontier))
        lent = []
        for cause in ("SIGSEGV", "SIGABRT"):
            lease = await take_one(frontier)
            lent.append((lease.alone, lease.attempt))
            await frontier.evict("w1", suspects=[lease.token], cause=cause)
        assert lent == [(True, 1), (True, 2)]
        (letter,) = await frontier.dead(CRAWL, DeadFilter())
        assert (letter.reason, letter.attempts) == ("worker lost: SIGABRT", 2)
        assert letter.detail == "the worker w1 died while it had only this page"
        assert (await frontier.look_up(CRAWL, 1)).losses == 0
        assert (await frontier.progress(CRAWL)).outcomes == {"worker lost": 1}
        await check_counts(frontier, dead=1)

    async def test_the_dead_letter_of_an_expired_lease_says_what_is_known(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(1, max_attempts=1)])
        await take(frontier, worker="host:12")
        assert await frontier.evict("host:12", cause="SIGSEGV") == 1
        assert (await frontier.look_up(CRAWL, 1)).reason == "worker lost: SIGSEGV"
        for _ in range(SUSPECT_LOSSES):
            await take(frontier, worker="host:34")
            clock.advance(LEASE_SECONDS)
        assert (await take(frontier)).leases == []
        status = await frontier.look_up(CRAWL, 1)
        assert (status.state, status.reason) == (TaskState.DEAD, "worker lost")
        assert status.detail == "its lease ended without a word from the worker host:34, which had only this page"

    async def test_a_suspect_that_waited_for_its_turn_does_not_pay_for_another_page(self, frontier: Frontier) -> None:
        """A worker finishes its pages before it begins a suspect: one of them may kill it."""
        await frontier.put(CRAWL, [make_task(1, max_attempts=1)])
        await make_suspect(frontier, await take_one(frontier))
        await frontier.put(CRAWL, [make_task(2, "b.test", max_attempts=1)])
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(rest_seconds=0.5))
        (killer,) = (await take(frontier, worker="w2")).leases
        (suspect,) = (await take(frontier, horizon=1.0, worker="w2")).leases
        assert (killer.task.key, suspect.task.key, suspect.alone) == (2, 1, True)
        assert await frontier.evict("w2", suspects=[killer.token]) == 2
        for key in (1, 2):
            status = await frontier.look_up(CRAWL, key)
            assert (status.state, status.attempts, status.losses) == (TaskState.QUEUED, 0, SUSPECT_LOSSES)

    async def test_tokens_of_other_workers_leases_blame_nobody(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1), make_task(2)])
        await take(frontier, 1, worker="gone")
        alive = (await take(frontier, 1, worker="alive")).leases[0]
        assert await frontier.evict("gone", suspects=[alive.token]) == 1
        assert (await frontier.look_up(CRAWL, 2)).losses == 0
        assert not (await take_one(frontier)).alone

    @pytest.mark.parametrize("ending", ["done", "retry", "free", "dead"])
    async def test_a_result_clears_a_task_of_suspicion(self, frontier: Frontier, ending: str) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        await make_suspect(frontier, await take_one(frontier))
        lease = await take_one(frontier)
        results: dict[str, Result] = {
            "done": Done(lease=lease),
            "retry": Retry(lease=lease, reason="timeout", delay=0.0),
            "free": Retry(lease=lease, reason="timeout", delay=0.0, free=True),
            "dead": Dead(lease=lease, reason="http_404: gone"),
        }
        assert (await frontier.settle([results[ending]])).stale == []
        assert await frontier.requeue_dead(CRAWL, DeadFilter()) == (ending == "dead")
        assert (await frontier.look_up(CRAWL, 1)).losses == 0
        if ending != "done":
            assert not (await take_one(frontier)).alone

    async def test_a_released_suspect_stays_one(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        await make_suspect(frontier, await take_one(frontier))
        await frontier.settle([Released(lease=await take_one(frontier))])
        assert (await frontier.look_up(CRAWL, 1)).losses == SUSPECT_LOSSES
        again = await take_one(frontier)
        assert (again.alone, again.attempt) == (True, 1)

    async def test_losses_that_are_not_in_a_row_make_no_suspect(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        for _ in range(SUSPECT_LOSSES + 1):
            lease = await take_one(frontier)
            assert (lease.alone, lease.attempt) == (False, 1)
            await frontier.evict("w1")
            await frontier.settle([Retry(lease=await take_one(frontier), reason="timeout", delay=0.0, free=True)])

    async def test_losses_and_free_retries_are_counted_apart(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1, max_attempts=4)])
        for _ in range(3):
            await frontier.settle([Retry(lease=await take_one(frontier), reason="blocked", delay=0.0, free=True)])
        await frontier.settle([Retry(lease=await take_one(frontier), reason="timeout", delay=0.0)])
        await take(frontier)
        await frontier.evict("w1")
        lease = await take_one(frontier)
        assert (lease.attempt, lease.free_retries, lease.alone) == (2, 3, False)
        assert (await frontier.look_up(CRAWL, 1)).losses == 1

    async def test_a_requeued_letter_that_was_lost_with_its_worker_is_lent_alone(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1, max_attempts=1), make_task(2), make_task(3)])
        await frontier.bury(CRAWL, [(make_task(4), "http_500: broken")])
        await make_suspect(frontier, (await take(frontier, 1)).leases[0])
        lease = await take_one(frontier)
        await frontier.evict("w1", suspects=[lease.token], cause="SIGSEGV")
        assert await frontier.requeue_dead(CRAWL, DeadFilter()) == 2
        status = await frontier.look_up(CRAWL, 1)
        assert (status.losses, status.attempts, status.reason) == (SUSPECT_LOSSES, 0, "")
        batches = [await take(frontier) for _ in range(2)]
        assert [keys(batch) for batch in batches] == [[1], [2, 3, 4]]
        assert [(lease.alone, lease.attempt) for lease in batches[0].leases] == [(True, 1)]

    async def test_a_lane_stops_before_a_suspect_that_is_not_next(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(5, priority=-1)])
        await make_suspect(frontier, await take_one(frontier))
        await frontier.put(CRAWL, [make_task(1), make_task(2)])
        assert keys(await take(frontier)) == [1, 2]
        batch = await take(frontier)
        assert [(lease.task.key, lease.alone) for lease in batch.leases] == [(5, True)]

    async def test_a_suspect_does_not_hold_up_other_lanes_nor_they_it(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(1, "suspect.test")])
        lease = await take_one(frontier)
        await frontier.put(CRAWL, [make_task(100 + number, f"{number % 3}.test") for number in range(90)])
        clock.advance(5.0)  # so that every other lane waits longer
        await make_suspect(frontier, lease)
        lent, alone = [], []
        for _ in range(6):
            clock.advance(0.01)
            batch = await take(frontier, 6)
            lent.append(len(batch.leases))
            alone += [lease.task.key for lease in batch.leases if lease.alone]
        assert alone == [1]
        # First the lanes that waited longer, in a call with a share for the suspect; then it alone; then the others.
        assert lent == [5, 1, 6, 6, 6, 6]

    async def test_a_suspect_of_one_crawl_is_the_only_lease_of_a_call_for_several(self, frontier: Frontier) -> None:
        await frontier.open_crawl(Crawl(id=OTHER, spider="s", interval=0.0, cap=100))
        await frontier.put(CRAWL, [make_task(1), make_task(2)])
        held = await take(frontier)
        await make_suspect(frontier, held.leases[0])
        await frontier.put(OTHER, [make_task(1, "b.test"), make_task(2, "b.test")])
        lent = []
        for _ in range(3):
            batch = await frontier.lease([OTHER, CRAWL], 10, worker="w1", seconds=LEASE_SECONDS, horizon=0.0)
            lent.append([(lease.crawl, lease.task.key, lease.alone) for lease in batch.leases])
        assert lent[0] == [(CRAWL, 1, True)]
        assert sorted(lent[1]) == [(CRAWL, 2, False), (OTHER, 1, False), (OTHER, 2, False)]
        assert lent[2] == []

    async def test_a_call_for_many_leases_lends_no_suspect_behind_others(self, frontier: Frontier) -> None:
        """A backend may lease in parts: only the first part may be a suspect alone."""
        await frontier.open_crawl(Crawl(id=OTHER, spider="s", interval=0.0, cap=1000))
        await frontier.put(OTHER, [make_task(1, priority=-1)])
        (lease,) = (await frontier.lease([OTHER], 1, worker="w1", seconds=60.0, horizon=0.0)).leases
        await make_suspect(frontier, lease)
        await frontier.put(OTHER, [make_task(number) for number in range(10, 110)])
        batch = await frontier.lease([OTHER], 500, worker="w1", seconds=60.0, horizon=0.0)
        assert keys(batch) == list(range(10, 110))

    async def test_a_suspect_opens_its_lane(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.open_crawl(Crawl(id="ruled", spider="s", interval=0.0, needs_rules=True))
        await frontier.put("ruled", [make_task(1), make_task(2)])

        async def lent() -> list[Lease]:
            return (await frontier.lease(["ruled"], 8, worker="w1", seconds=60.0, horizon=0.0)).leases

        (first,) = await lent()
        await make_suspect(frontier, first)
        clock.advance(1.0)
        await frontier.put("ruled", [make_task(3, "b.test")])
        (opener,) = await lent()
        assert (opener.task.key, opener.alone, opener.opens_lane) == (1, True, True)
        assert [(lease.task.key, lease.opens_lane) for lease in await lent()] == [(3, True)]
        update = LaneUpdate(rules=b"allow", rules_seconds=100.0)
        await frontier.settle([Released(lease=opener, lane=update)])
        (again,) = await lent()
        assert (again.task.key, again.alone, again.opens_lane) == (1, True, False)
        assert [(lease.task.key, lease.alone) for lease in await lent()] == [(2, False)]

    async def test_leases_that_a_living_worker_does_not_know_of_are_lent_again_at_no_charge(
        self, frontier: Frontier
    ) -> None:
        await frontier.put(CRAWL, [make_task(number, max_attempts=1) for number in range(4)])
        known = await take(frontier, 2)
        await take(frontier, 1)
        others = await take(frontier, 1, worker="w2")
        assert await frontier.evict("w1", known=[lease.token for lease in known.leases]) == 1
        status = await frontier.look_up(CRAWL, 2)
        assert (status.state, status.attempts, status.losses, status.reason) == (TaskState.QUEUED, 0, 0, "")
        assert await frontier.extend([*known.leases, *others.leases], seconds=LEASE_SECONDS) == []
        again = await take_one(frontier)
        assert (again.task.key, again.attempt, again.alone) == (2, 1, False)
        assert (await frontier.progress(CRAWL)).lost == 0
        await check_counts(frontier, leased=4)

    async def test_a_suspect_that_its_worker_does_not_know_of_stays_one_and_keeps_its_attempt(
        self, frontier: Frontier
    ) -> None:
        await frontier.put(CRAWL, [make_task(1, max_attempts=1)])
        await make_suspect(frontier, await take_one(frontier))
        assert (await take_one(frontier)).alone
        assert await frontier.evict("w1", known=[]) == 1
        again = await take_one(frontier)
        assert (again.alone, again.attempt) == (True, 1)


class LegacyPromises(FrontierCase):
    """What an ended or deleted crawl leaves to the others."""

    async def test_requests_of_a_crawl_without_workers_are_reclaimed_by_who_looks(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        """Its own workers have as long as a lease to come back."""
        await begin(frontier, ONE, cap=1)
        await begin(frontier, TWO, cap=1)
        await ask(frontier, ONE)
        clock.advance(2 * LEASE_SECONDS - 1.0)
        assert (await ask(frontier, TWO)).leases == []
        assert (await frontier.progress(ONE)).leased == 1
        clock.advance(1.0)
        assert len((await ask(frontier, TWO)).leases) == 1
        progress = await frontier.progress(ONE)
        assert (progress.leased, progress.lost, progress.queued) == (0, 1, 50)

    async def test_an_account_that_a_crawl_without_workers_holds_comes_free(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        self.need_one_shard()
        await begin(frontier, ONE, VIA_POOL, pools=(make_pool("anna", exclusive=True),))
        await begin(frontier, TWO, "b.test via pool", pools=(make_pool("anna", exclusive=True),))
        await ask(frontier, ONE)
        clock.advance(2 * LEASE_SECONDS - 1.0)
        assert (await ask(frontier, TWO)).leases == []
        clock.advance(1.0)
        assert [lease.exit for lease in (await ask(frontier, TWO)).leases] == ["anna"]

    async def test_a_rest_outlives_the_crawl_that_it_was_given_to(self, frontier: Frontier, clock: FakeClock) -> None:
        await begin(frontier, ONE)
        await begin(frontier, TWO)
        await frontier.update_lane(ONE, "a.test", LaneUpdate(rest_seconds=30.0))
        await frontier.delete_crawl(ONE)
        await begin(frontier, "new")
        clock.advance(29.0)
        for name in (TWO, "new"):
            assert (await ask(frontier, name)).leases == []
        clock.advance(1.0)
        for name in (TWO, "new"):
            assert len((await ask(frontier, name, 1)).leases) == 1

    async def test_a_start_outlives_its_crawl_but_what_is_in_flight_does_not(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await begin(frontier, ONE, cap=1)
        await ask(frontier, ONE)
        clock.advance(1.0)
        await frontier.delete_crawl(ONE)
        await begin(frontier, TWO, interval=2.0, cap=1)
        clock.advance(0.9)
        assert (await ask(frontier, TWO)).leases == []
        clock.advance(0.1)
        assert len((await ask(frontier, TWO)).leases) == 1

    async def test_a_crawl_that_is_deleted_in_part_holds_nothing(self, frontier: Frontier, clock: FakeClock) -> None:
        self.need_one_shard()
        lanes = [VIA_POOL, *(f"{number}.test" for number in range(LANES_OF_SEVERAL_STEPS))]
        pools = (make_pool("anna", exclusive=True),)
        for name in (ONE, TWO):
            await begin(frontier, name, *lanes, cap=1, tasks=1, pools=pools)
        assert len((await ask(frontier, ONE, len(lanes))).leases) == len(lanes)
        assert (await ask(frontier, TWO, len(lanes))).leases == []
        await frontier.delete_crawl(ONE, seconds=0.0)
        clock.advance(1.0)
        assert len((await ask(frontier, TWO, len(lanes))).leases) == len(lanes)

    async def test_rules_outlive_the_crawl_that_fetched_them(self, frontier: Frontier, clock: FakeClock) -> None:
        await begin(frontier, ONE, needs_rules=True)
        update = LaneUpdate(rules=b"allow", rules_seconds=100.0, base_interval=3.0, why="asks for it")
        await frontier.update_lane(ONE, "a.test", update)
        await frontier.delete_crawl(ONE)
        clock.advance(90.0)
        await begin(frontier, TWO, needs_rules=True)
        (lease,) = (await ask(frontier, TWO)).leases
        assert (lease.opens_lane, lease.interval, lease.base_interval) == (False, 3.0, 3.0)
        assert (await frontier.rules(TWO, "a.test"))[1] == b"allow"
        clock.advance(10.0)
        assert [lease.opens_lane for lease in (await ask(frontier, TWO)).leases] == [True]

    @pytest.mark.parametrize("is_deleted", [False, True])
    async def test_a_pace_that_was_learnt_is_for_new_lanes_of_crawls_that_search(
        self, frontier: Frontier, clock: FakeClock, is_deleted: bool
    ) -> None:
        await begin(frontier, ONE, interval=1.0, fastest=0.1)
        await frontier.update_lane(ONE, "a.test", LaneUpdate(interval=0.3, learnt=0.25))
        if is_deleted:
            await frontier.delete_crawl(ONE)
        clock.advance(LEARNT_SECONDS - 1.0)
        await begin(frontier, TWO, "a.test", "b.test", interval=1.0, fastest=0.1)
        await begin(frontier, "plain", interval=1.0)
        paces = {lane.lane: (lane.interval, lane.base_interval) for lane in await frontier.lanes(TWO)}
        assert paces == {"a.test": (0.25, 1.0), "b.test": (1.0, 1.0)}
        assert [lane.interval for lane in await frontier.lanes("plain")] == [1.0]
        clock.advance(1.0)
        await begin(frontier, "late", interval=1.0, fastest=0.1)
        assert [lane.interval for lane in await frontier.lanes("late")] == [1.0]

    async def test_no_lane_is_faster_than_searches_of_its_crawl_may_make_it(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        async def pace_of(crawl: str) -> tuple[float, float]:
            (lane,) = await frontier.lanes(crawl)
            return lane.interval, lane.base_interval

        await begin(frontier, ONE, interval=1.0, fastest=0.1)
        await frontier.update_lane(ONE, "a.test", LaneUpdate(interval=0.2, learnt=0.2))
        await begin(frontier, TWO, interval=1.0, fastest=0.5)
        assert await pace_of(TWO) == (0.5, 1.0)
        # The same crawl with another end of its search; an equally distant end changes nothing.
        assert len((await ask(frontier, ONE, 1)).leases) == 1
        for fastest, interval in ((0.1, 0.2), (0.25, 0.25), (0.1, 0.25), (2.0, 1.0)):
            await frontier.open_crawl(Crawl(id=ONE, spider="s", interval=1.0, fastest=fastest))
            assert await pace_of(ONE) == (interval, 1.0)
        assert (await ask(frontier, ONE, 1)).ask_again == 1.0
        await frontier.open_crawl(Crawl(id=TWO, spider="s", interval=1.0))
        assert await pace_of(TWO) == (1.0, 1.0)
