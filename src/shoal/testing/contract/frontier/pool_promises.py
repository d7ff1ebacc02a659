"""Frontier promises about pools: their size, their names, changes to them, and the accounts in them."""

from __future__ import annotations

import pytest

from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import MAX_KEPT_SESSIONS
from shoal.model import DIRECT, Crawl, CrawlState, Dead, Done, ExitUse, LaneUpdate, Pool, Released, Retry
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import CRAWL, FrontierCase, check_counts, take, take_one
from shoal.testing.contract.frontier.exit_promises import LANE, end, exits_of, fill, make_pool, open_pools, status_of


class PoolPromises(FrontierCase):
    async def test_deleting_a_crawl_forgets_its_exits(self, frontier: Frontier) -> None:
        await open_pools(frontier, make_pool("anna"))
        await fill(frontier, 1)
        await end(frontier, await take_one(frontier), "failed", session=b"cookies")
        await frontier.delete_crawl(CRAWL)
        await open_pools(frontier, make_pool("anna"))
        assert await frontier.exits(CRAWL) == []
        assert await frontier.session(CRAWL, "anna") == (0, b"")

    async def test_pools_may_change_and_exits_that_stay_are_remembered(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await open_pools(frontier, make_pool("x", "y", quarantine=100.0))
        await fill(frontier, 9)
        for lease in (await take(frontier, 2)).leases:
            await end(frontier, lease, "blocked")
        await open_pools(frontier, make_pool("y", "new", quarantine=100.0))
        assert set(exits_of(await take(frontier))) == {"new"}
        assert (await status_of(frontier, "y")).rests_for == pytest.approx(100.0)
        await open_pools(frontier, make_pool("x", quarantine=100.0))
        clock.advance(100.0)
        assert exits_of(await take(frontier, 1)) == ["x"]

    async def test_the_pace_of_a_host_follows_its_pool(self, frontier: Frontier, clock: FakeClock) -> None:
        await open_pools(frontier, make_pool(host_cap=7))
        await fill(frontier, 2, LANE, "b.test via pool")
        await frontier.update_lane(CRAWL, "b.test via pool", LaneUpdate(interval=9.0, base_interval=9.0, cap=3))
        await open_pools(frontier, make_pool(host_cap=5, host_interval=2.0))
        paces = {lane.lane: (lane.interval, lane.cap) for lane in await frontier.lanes(CRAWL)}
        assert paces == {LANE: (2.0, 5), "b.test via pool": (9.0, 3)}
        await take_one(frontier)
        clock.advance(1.0)
        assert [lease.task.lane for lease in (await take(frontier)).leases] == ["b.test via pool"]

    async def test_the_tasks_of_a_pool_without_exits_are_given_up_after_its_patience(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await open_pools(frontier, Pool(name="pool", exits=(), patience=10.0))
        await fill(frontier, 2)
        for _ in range(2):
            assert (await take(frontier)).leases == []
            await check_counts(frontier, queued=2)
            clock.advance(5.0)
        assert (await take(frontier)).leases == []
        await check_counts(frontier, dead=2)

    async def test_names_of_exits_and_pools_may_be_odd(self, frontier: Frontier) -> None:
        names = ("p0", "e1", "size", "é 漢 '\"%_:{}", "x via y", "-inf")
        await open_pools(frontier, make_pool(*names), make_pool(*names, name="pöol: {2}"))
        lanes = (LANE, "a.test via pöol: {2}")
        await fill(frontier, len(names), *lanes)
        leases = (await take(frontier)).leases
        assert sorted((lease.task.lane, lease.exit) for lease in leases) == sorted(
            (lane, name) for lane in lanes for name in names
        )
        await frontier.settle([Done(lease=lease, exit=ExitUse()) for lease in leases])
        found = await frontier.exits(CRAWL)
        assert [(one.exit, one.ok, one.in_flight) for one in found] == [(name, 1, 0) for name in sorted(names * 2)]

    @pytest.mark.parametrize("names", [("x", "x"), ("",), (DIRECT,), ("a\nb",)])
    async def test_refuses_exits_that_cannot_be_told_apart(self, frontier: Frontier, names: tuple[str, ...]) -> None:
        with pytest.raises(UsageError, match=r"pool pool: .* cannot be the name of an exit"):
            await open_pools(frontier, make_pool(*names))
        with pytest.raises(UsageError, match="cannot be the name of a pool"):
            await open_pools(frontier, make_pool("x"), make_pool("y"))

    async def test_an_exit_of_two_pools_is_parked_for_both(self, frontier: Frontier) -> None:
        self.need_one_shard()
        await open_pools(frontier, make_pool("x"), make_pool("x", name="other"))
        lanes = ["a.test via pool", "a.test via other", "b.test via pool", "b.test via other"]
        await fill(frontier, 2, *lanes)
        failing = [lease for lease in (await take(frontier, 4)).leases if lease.task.lane != lanes[3]]
        for lease in failing:
            await end(frontier, lease, "failed")
        parked = [one.parked_for > 0 for one in await frontier.exits(CRAWL)]
        assert parked == [True] * 4
        assert (await take(frontier)).leases == []

    async def test_a_pool_may_have_thousands_of_exits(self, frontier: Frontier) -> None:
        names = tuple(f"exit-{number:05}" for number in range(5000))
        await open_pools(frontier, make_pool(*names, cap=1))
        await fill(frontier, 300, LANE, "b.test via pool")
        leases = [lease for _ in range(6) for lease in (await take(frontier)).leases]
        for lane in (LANE, "b.test via pool"):
            used = [lease.exit for lease in leases if lease.task.lane == lane]
            assert len(used) == len(set(used)) == 300
        await frontier.settle([Done(lease=lease, exit=ExitUse()) for lease in leases])
        await open_pools(frontier, make_pool(*names[::-1], cap=1))
        found = await frontier.exits(CRAWL, limit=1000)
        assert (len(found), sum(one.ok for one in found)) == (600, 600)

    async def test_many_parked_and_held_exits_do_not_hide_a_free_one(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        self.need_one_shard()
        names = tuple(f"exit-{number:03}" for number in range(40))
        await open_pools(frontier, make_pool(*names, quarantine=1000.0, max_quarantine=9000.0))
        lanes = [f"{number}.test via pool" for number in range(4)]
        await fill(frontier, 200, *lanes)
        bad = set(names[:35])
        for _ in range(3):
            batch = await take(frontier, 100)
            await frontier.settle(
                [
                    Retry(
                        lease=lease,
                        reason="x",
                        free=True,
                        exit=ExitUse(verdict="failed" if lease.exit in bad else "ok"),
                    )
                    for lease in batch.leases
                ]
            )
            clock.advance(0.1)
        await fill(frontier, 3, "new.test via pool", first=5000)
        clock.advance(1.0)
        used = [lease.exit for lease in (await take(frontier, 100)).leases if lease.task.lane.startswith("new")]
        assert len(used) == 3
        assert not bad & set(used)

    async def test_a_free_exit_behind_hundreds_of_parked_ones_is_found_within_a_few_calls(
        self, frontier: Frontier
    ) -> None:
        self.need_one_shard()
        names = tuple(f"exit-{number:04}" for number in range(510))
        await open_pools(frontier, make_pool(*names, quarantine=1000.0))
        lanes = [f"{number}.test via pool" for number in range(3)]
        for number, lane in enumerate(lanes):
            await fill(frontier, 510, lane, first=510 * number)
        leases = [lease for _ in range(16) for lease in (await take(frontier, 100)).leases]
        assert len(leases) == 1530
        use = ExitUse(verdict="failed")
        failed = [lease for lease in leases if lease.exit != names[-1]]
        await frontier.settle([Retry(lease=lease, reason="x", delay=99.0, free=True, exit=use) for lease in failed])
        await fill(frontier, 1, "new.test via pool", first=5000)
        found = [lease.exit for _ in range(3) for lease in (await take(frontier)).leases]
        assert found == [names[-1]]

    async def test_no_more_is_lent_than_asked_for_however_many_lanes_and_exits(self, frontier: Frontier) -> None:
        await open_pools(frontier, make_pool(cap=1))
        lanes = [f"{number}.test via pool" for number in range(9)]
        await fill(frontier, 3, *lanes)
        batch = await take(frontier, 4)
        assert len({lease.task.lane for lease in batch.leases}) == len(batch.leases) == 4
        assert sum(one.in_flight for one in await frontier.exits(CRAWL)) == 4

    async def test_opening_a_lane_goes_through_one_exit_and_counts_as_its_use(self, frontier: Frontier) -> None:
        crawl = Crawl(id=CRAWL, spider="s", interval=0.0, cap=100, pools=(make_pool(),), needs_rules=True)
        await frontier.open_crawl(crawl)
        await fill(frontier, 5)
        (opening,) = (await take(frontier)).leases
        assert (opening.opens_lane, opening.exit) == (True, "x")
        rules = LaneUpdate(rules=b"r", rules_seconds=60.0)
        await frontier.settle([Released(lease=opening, lane=rules, exit=ExitUse())])
        assert (await status_of(frontier, "x")).ok == 1
        assert set(exits_of(await take(frontier))) == {"x", "y", "z"}

    async def test_a_clock_that_goes_back_lends_nothing_twice(self, frontier: Frontier, clock: FakeClock) -> None:
        await open_pools(frontier, make_pool("x", interval=1.0, cap=1))
        await fill(frontier, 5)
        first = await take_one(frontier)
        clock.advance(-30.0)
        assert (await take(frontier)).leases == []
        await end(frontier, first, "blocked")
        assert (await take(frontier)).leases == []
        clock.advance(30.0 + 60.0)
        assert exits_of(await take(frontier)) == ["x"]

    async def test_an_exit_that_came_while_the_others_rested_is_tried_before_tasks_are_given_up(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await open_pools(frontier, make_pool("x", quarantine=1000.0, patience=100.0))
        await fill(frontier, 3)
        await end(frontier, await take_one(frontier), "failed")
        clock.advance(200.0)
        await open_pools(frontier, make_pool("x", "new", quarantine=1000.0, patience=100.0))
        assert exits_of(await take(frontier)) == ["new"] * 3

    async def test_an_exit_whose_rest_was_over_while_no_worker_asked_is_tried_before_tasks_are_given_up(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await open_pools(frontier, make_pool("x", quarantine=10.0, patience=100.0))
        await fill(frontier, 3)
        await end(frontier, await take_one(frontier), "failed")
        clock.advance(1000.0)
        lease = await take_one(frontier)
        assert (await take(frontier)).leases == []
        await check_counts(frontier, queued=2, leased=1)
        await end(frontier, lease, "failed")
        for rest in (20.0, 40.0):
            clock.advance(rest)
            await end(frontier, await take_one(frontier), "failed")
        clock.advance(39.0)
        assert (await take(frontier)).leases == []
        await check_counts(frontier, queued=3)
        clock.advance(1.0)
        assert (await take(frontier)).leases == []
        await check_counts(frontier, dead=3)

    async def test_a_host_is_woken_when_it_may_change_the_exit_it_keeps(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await open_pools(frontier, make_pool("x", "y", interval=60.0, sticky=True, rotate=10.0))
        await fill(frontier, 3)
        assert exits_of(await take(frontier)) == ["x"]
        clock.advance(9.0)
        assert (await take(frontier)).leases == []
        clock.advance(1.0)
        assert exits_of(await take(frontier)) == ["y"]

    async def test_when_pools_change_no_exit_is_used_earlier_than_its_interval_allows(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        pool = make_pool("x", interval=30.0, quarantine=1.0)
        await open_pools(frontier, pool)
        await fill(frontier, 3)
        await end(frontier, await take_one(frontier), "blocked")
        await open_pools(frontier, pool)
        clock.advance(29.0)
        assert (await take(frontier)).leases == []
        clock.advance(1.0)
        assert exits_of(await take(frontier)) == ["x"]

    async def test_when_pools_change_an_exit_that_was_put_off_keeps_its_interval(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        self.need_one_shard()
        pool = make_pool("anna", interval=30.0, exclusive=True)
        await open_pools(frontier, pool)
        await fill(frontier, 3)
        lease = await take_one(frontier)
        assert (await take(frontier, horizon=40.0)).leases == []
        await open_pools(frontier, pool)
        await end(frontier, lease, "ok")
        await open_pools(frontier, pool)
        clock.advance(29.0)
        assert (await take(frontier)).leases == []
        clock.advance(1.0)
        assert exits_of(await take(frontier, 1)) == ["anna"]

    async def test_a_lane_out_of_patience_waits_for_its_turn_like_any_other(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await open_pools(frontier, make_pool("x", quarantine=1000.0, patience=6.0))
        await fill(frontier, 3, LANE, "b.test via pool")
        first, *others = [lease for lease in (await take(frontier, 4)).leases if lease.task.lane == LANE]
        await end(frontier, first, "blocked")
        clock.advance(3.0)
        assert (await take_one(frontier)).task.lane == "b.test via pool"
        await fill(frontier, 1, "b.test via pool", first=9)
        clock.advance(8.0)
        for lease in others:
            await end(frontier, lease, "used")
        assert (await take_one(frontier)).task.lane == "b.test via pool"
        await take(frontier)
        assert (await frontier.progress(CRAWL)).outcomes == {"no_exit": 3}

    async def test_tasks_are_given_up_when_all_exits_are_parked_too_long(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await open_pools(frontier, make_pool("x", "y", quarantine=10.0, max_quarantine=80.0, patience=100.0, cap=1))
        await fill(frontier, 1, *(f"{number}.test via pool" for number in range(20)))
        for _ in range(100):
            for lease in (await take(frontier)).leases:
                await end(frontier, lease, "failed")
            clock.advance(5.0)
        await check_counts(frontier, dead=20)

    async def test_tasks_that_wait_for_a_busy_account_are_not_given_up(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        self.need_one_shard()
        await open_pools(frontier, make_pool("anna", exclusive=True, patience=10.0))
        await fill(frontier, 1, "a.test via pool", "b.test via pool")
        lease = await take_one(frontier)
        for _ in range(50):
            assert (await take(frontier)).leases == []
            clock.advance(1.0)
        await end(frontier, lease, "ok")
        clock.advance(1.0)
        assert exits_of(await take(frontier)) == ["anna"]


class AccountPromises(FrontierCase):
    async def test_an_account_is_held_by_one_lease_at_a_time(self, frontier: Frontier, clock: FakeClock) -> None:
        self.need_one_shard()
        await open_pools(frontier, make_pool("anna", "ben", exclusive=True, cap=1))
        await fill(frontier, 3, "a.test via pool", "b.test via pool", "c.test via pool")
        first = await take(frontier)
        assert sorted(exits_of(first)) == ["anna", "ben"]
        clock.advance(1.0)
        assert (await take(frontier)).leases == []
        await frontier.settle([Done(lease=first.leases[0], exit=ExitUse())])
        clock.advance(1.0)
        assert exits_of(await take(frontier)) == [first.leases[0].exit]

    async def test_an_account_that_two_hosts_keep_is_held_by_one_lease_at_a_time(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        self.need_one_shard()
        await open_pools(frontier, make_pool("anna", exclusive=True, sticky=True, interval=3.0))
        await fill(frontier, 9, "a.test via pool", "b.test via pool")
        lanes = []
        for _ in range(6):
            lease = await take_one(frontier)
            clock.advance(1.0)
            assert (await take(frontier)).leases == []
            await end(frontier, lease, "ok")
            lanes.append(lease.task.lane)
            clock.advance(1.0)
        assert set(lanes) == {"a.test via pool", "b.test via pool"}

    async def test_keeps_the_session_of_an_exit(self, frontier: Frontier, second: Frontier) -> None:
        self.need_one_shard()
        await open_pools(frontier, make_pool("anna", exclusive=True))
        await fill(frontier, 3)
        lease = await take_one(frontier)
        assert lease.session_version == 0
        await end(frontier, lease, "ok", session=b"cookies")
        version, session = await second.session(CRAWL, "anna")
        assert session == b"cookies"
        again = await take_one(frontier)
        assert again.session_version == version > 0
        await end(frontier, again, "ok", session=b"")
        assert await frontier.session(CRAWL, "anna") == (0, b"")
        assert (await take_one(frontier)).session_version == 0

    async def test_a_later_login_has_another_version(self, frontier: Frontier) -> None:
        self.need_one_shard()
        await open_pools(frontier, make_pool("anna", exclusive=True))
        await fill(frontier, 1)
        versions = []
        for session in (b"one", b"", b"two"):
            await end(frontier, await take_one(frontier), "ok", session=session)
            versions.append((await frontier.session(CRAWL, "anna"))[0])
        assert versions[1] == 0
        assert versions[0] != versions[2]

    async def test_keeps_a_session_that_no_lease_reports(self, frontier: Frontier, second: Frontier) -> None:
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s"))
        name = "cookies direct a.test"
        assert await frontier.session(CRAWL, name) == (0, b"")
        version, kept = await frontier.keep_session(CRAWL, name, b"one\x00\xff", version=0)
        assert (version > 0, kept) == (True, b"one\x00\xff")
        assert await second.session(CRAWL, name) == (version, kept)
        assert await second.session(CRAWL, "cookies direct b.test") == (0, b"")

    async def test_a_session_that_was_changed_meanwhile_is_not_replaced(
        self, frontier: Frontier, second: Frontier
    ) -> None:
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s"))
        first, _ = await frontier.keep_session(CRAWL, "x", b"one", version=0)
        later, _ = await second.keep_session(CRAWL, "x", b"two", version=first)
        assert later != first
        assert await frontier.keep_session(CRAWL, "x", b"three", version=first) == (later, b"two")
        assert await frontier.keep_session(CRAWL, "x", b"three", version=0) == (later, b"two")
        # The reply to the second call was lost: it is made again.
        assert await second.keep_session(CRAWL, "x", b"two", version=first) == (later, b"two")
        assert await frontier.keep_session(CRAWL, "x", b"", version=later) == (0, b"")
        assert (await frontier.keep_session(CRAWL, "x", b"four", version=0))[1] == b"four"

    async def test_keeps_no_more_sessions_than_there_is_room_for(self, frontier: Frontier) -> None:
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s"))
        for number in range(MAX_KEPT_SESSIONS):
            await frontier.keep_session(CRAWL, f"site {number}", b"cookies", version=0)
        assert await frontier.keep_session(CRAWL, "one more", b"cookies", version=0) == (0, b"")
        assert await frontier.session(CRAWL, "one more") == (0, b"")
        version, _ = await frontier.session(CRAWL, "site 0")
        assert (await frontier.keep_session(CRAWL, "site 0", b"newer", version=version))[1] == b"newer"

    async def test_a_deleted_crawl_takes_its_sessions_along(self, frontier: Frontier) -> None:
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s"))
        await frontier.keep_session(CRAWL, "x", b"one", version=0)
        await frontier.delete_crawl(CRAWL)
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s"))
        assert await frontier.session(CRAWL, "x") == (0, b"")

    async def test_counts_the_requests_through_an_exit(self, frontier: Frontier) -> None:
        await open_pools(frontier, make_pool("x", cost=0.5, cost_per_gb=2.0, quarantine=0.0))
        await fill(frontier, 5)
        leases = (await take(frontier)).leases
        await end(frontier, leases[0], "ok", size=500_000_000, elapsed=2.0)
        await end(frontier, leases[1], "blocked", size=0, elapsed=1.0)
        await end(frontier, leases[2], "used", size=1_000_000_000, elapsed=3.0)
        await frontier.settle([Released(lease=leases[3], exit=ExitUse(verdict="unused"))])
        await frontier.settle([Released(lease=leases[4])])
        status = await status_of(frontier, "x")
        assert (status.requests, status.ok, status.blocked, status.failed, status.in_flight) == (4, 1, 1, 0, 0)
        assert (status.size, status.elapsed, status.cost) == (1_500_000_000, 6.0, 5.0)
        assert (await frontier.progress(CRAWL)).cost == 5.0

    async def test_a_crawl_whose_budget_is_spent_is_paused(self, frontier: Frontier) -> None:
        self.need_one_shard()
        pool = make_pool("x", cost=0.5)
        await open_pools(frontier, pool, cost=1.0)
        await fill(frontier, 9)
        for _ in range(2):
            lease = await take_one(frontier)
            await frontier.settle([Dead(lease=lease, reason="http_404", exit=ExitUse())])
        assert (await take(frontier)).leases == []
        assert (await frontier.progress(CRAWL)).state == CrawlState.PAUSED
        await open_pools(frontier, pool, cost=2.0)
        await frontier.set_state(CRAWL, CrawlState.RUNNING)
        assert len((await take(frontier)).leases) == 7

    async def test_a_crawl_that_ends_as_its_budget_is_spent_is_finished(self, frontier: Frontier) -> None:
        self.need_one_shard()
        await open_pools(frontier, make_pool("x", cost=0.5), cost=0.5)
        await fill(frontier, 1)
        await frontier.settle([Done(lease=await take_one(frontier), exit=ExitUse())])
        assert (await take(frontier)).finished == (CRAWL,)
        assert (await frontier.progress(CRAWL)).state == CrawlState.FINISHED
