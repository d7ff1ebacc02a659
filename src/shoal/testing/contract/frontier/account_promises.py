"""What a frontier promises about accounts, and about the costs of exits."""

from __future__ import annotations

from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import MAX_KEPT_SESSIONS
from shoal.model import Crawl, CrawlState, Dead, Done, ExitUse, Released
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import CRAWL, FrontierCase, take, take_one
from shoal.testing.contract.frontier.exit_promises import end, exits_of, fill, make_pool, open_pools, status_of


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
        # The reply to the second call was lost, and it is made again.
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
