"""What every frontier promises about keys that are known without a task."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.tasks import KNOWN_KEYS
from shoal.model import Budgets, Crawl, CrawlState, Done, TaskState
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import CRAWL, FrontierCase, check_counts, keys, make_task, take, take_one

LANES = ("a.test", "b.test", "c.test", "d.test")
MANY = 12_000
TTL = 100.0
WEEKLY = Crawl(id="weekly", spider="s", interval=0.0, cap=1000, dedup_ttl=TTL)


class KnownPromises(FrontierCase):
    """Such a key is a duplicate, and never was a task."""

    async def test_a_key_that_is_known_without_a_task_is_a_duplicate_in_every_lane(self, frontier: Frontier) -> None:
        assert await frontier.know(CRAWL, [0, 1, 2, 3, -1, 2**63 - 1, -(2**63)]) == 7
        report = await frontier.put(CRAWL, [make_task(number, lane) for number, lane in enumerate(LANES)])
        assert (report.new, report.duplicates) == (0, 4)
        report = await frontier.put(CRAWL, [make_task(number) for number in (-1, 2**63 - 1, -(2**63), 4)])
        assert (report.new, report.duplicates) == (1, 3)
        assert keys(await take(frontier)) == [4]

    async def test_keys_made_known_twice_are_new_once(self, frontier: Frontier) -> None:
        assert await frontier.know(CRAWL, [1, 2, 2]) == 2
        assert await frontier.know(CRAWL, [2, 3, 1]) == 1
        assert (await frontier.progress(CRAWL)).notes == {KNOWN_KEYS: 3}

    async def test_no_keys_are_none_that_are_new(self, frontier: Frontier) -> None:
        assert await frontier.know(CRAWL, []) == 0
        assert (await frontier.progress(CRAWL)).notes == {}

    async def test_known_keys_are_in_no_counter_of_tasks(self, frontier: Frontier) -> None:
        await frontier.know(CRAWL, [1, 2, 3])
        await check_counts(frontier)
        await frontier.put(CRAWL, [make_task(3), make_task(4)])
        await check_counts(frontier, queued=1)
        await frontier.settle([Done(lease=await take_one(frontier))])
        await check_counts(frontier, done=1)
        progress = await frontier.progress(CRAWL)
        assert (progress.duplicates, progress.notes) == (1, {KNOWN_KEYS: 3})

    async def test_known_keys_take_nothing_from_a_budget(self, frontier: Frontier) -> None:
        await frontier.open_crawl(Crawl(id="small", spider="s", budgets=Budgets(pages=2, per_lane=2)))
        await frontier.know("small", range(10))
        report = await frontier.put("small", [make_task(number) for number in range(8, 13)])
        assert (report.new, report.duplicates, list(report.refused)) == (2, 2, [12])

    async def test_the_key_of_a_task_stays_as_it_is(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(number, lane) for number, lane in enumerate(LANES)])
        leased = (await take(frontier, 1)).leases[0]
        assert await frontier.know(CRAWL, [0, 1, 2, 3, 4]) == 1
        assert (await frontier.look_up(CRAWL, leased.task.key)).state == TaskState.LEASED
        await frontier.settle([Done(lease=leased)])
        assert len((await take(frontier)).leases) == 3
        states = [(await frontier.look_up(CRAWL, number)).state for number in range(6)]
        assert sorted(states) == sorted([TaskState.DONE] * 2 + [TaskState.LEASED] * 3 + [TaskState.UNKNOWN])
        assert (await frontier.progress(CRAWL)).notes == {KNOWN_KEYS: 1}

    async def test_a_dead_letter_whose_key_is_made_known_can_be_requeued(self, frontier: Frontier) -> None:
        await frontier.bury(CRAWL, [(make_task(1, LANES[1]), "unfit")])
        assert await frontier.know(CRAWL, [1]) == 0
        status = await frontier.look_up(CRAWL, 1)
        assert (status.state, status.reason) == (TaskState.DEAD, "unfit")

    async def test_a_key_that_is_known_without_a_task_looks_done(self, frontier: Frontier) -> None:
        await frontier.know(CRAWL, [1])
        status = await frontier.look_up(CRAWL, 1)
        assert (status.state, status.task) == (TaskState.DONE, None)
        assert (await frontier.look_up(CRAWL, 2)).state == TaskState.UNKNOWN

    async def test_a_forgotten_key_can_be_put_and_made_known_again(self, frontier: Frontier) -> None:
        await frontier.know(CRAWL, [1, 2])
        await frontier.forget(CRAWL, [1, 2])
        assert (await frontier.look_up(CRAWL, 1)).state == TaskState.UNKNOWN
        assert await frontier.know(CRAWL, [2]) == 1
        report = await frontier.put(CRAWL, [make_task(1, LANES[2]), make_task(2, LANES[2])])
        assert (report.new, report.duplicates) == (1, 1)
        await check_counts(frontier, queued=1)

    async def test_other_crawls_do_not_know_these_keys(self, frontier: Frontier) -> None:
        await frontier.open_crawl(Crawl(id="other", spider="s"))
        await frontier.know(CRAWL, [1])
        assert (await frontier.put("other", [make_task(1)])).new == 1

    async def test_known_keys_are_there_for_other_processes_and_after_reopening(
        self, frontier: Frontier, second: Frontier, tmp_path: Path, clock: FakeClock
    ) -> None:
        await frontier.know(CRAWL, [1, 2])
        assert (await second.put(CRAWL, [make_task(1)])).duplicates == 1
        await second.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=100))
        third = await self.open(tmp_path, clock)
        assert (await third.put(CRAWL, [make_task(2)])).duplicates == 1
        await third.close()

    async def test_making_keys_known_neither_feeds_a_crawl_nor_sets_it_running(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        await frontier.settle([Done(lease=await take_one(frontier))])
        assert CRAWL in (await take(frontier)).finished
        await frontier.know(CRAWL, [2])
        assert (await frontier.progress(CRAWL)).state == CrawlState.FINISHED

    async def test_known_keys_go_with_their_crawl(self, frontier: Frontier) -> None:
        await frontier.know(CRAWL, [1])
        await frontier.delete_crawl(CRAWL)
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=100))
        assert (await frontier.put(CRAWL, [make_task(1)])).new == 1

    async def test_refuses_keys_of_a_crawl_that_does_not_exist(self, frontier: Frontier) -> None:
        for given in ([1], []):
            with pytest.raises(UsageError, match="no crawl 'missing'"):
                await frontier.know("missing", given)

    async def test_many_keys_are_known_after_one_call_in_bounded_steps(self, frontier: Frontier) -> None:
        draw = random.Random(1)
        many = [draw.getrandbits(64) - 2**63 for _ in range(MANY)]
        assert await frontier.know(CRAWL, many) == MANY
        report = await frontier.put(CRAWL, [make_task(key, LANES[key % 4]) for key in many])
        assert (report.new, report.duplicates) == (0, MANY)
        assert await frontier.know(CRAWL, [*many, 1]) == 1

    async def test_where_keys_expire_the_time_of_a_known_key_begins_when_it_is_made_known(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.open_crawl(WEEKLY)
        clock.advance(10 * TTL)
        assert await frontier.know(WEEKLY.id, [1]) == 1
        clock.advance(TTL - 0.001)
        # Known as it is, its time does not begin anew.
        assert await frontier.know(WEEKLY.id, [1]) == 0
        assert (await frontier.put(WEEKLY.id, [make_task(1)])).duplicates == 1
        clock.advance(0.5 * TTL + 0.002)
        assert (await frontier.look_up(WEEKLY.id, 1)).state == TaskState.UNKNOWN
        assert (await frontier.put(WEEKLY.id, [make_task(1)])).new == 1
        progress = await frontier.progress(WEEKLY.id)
        assert (progress.known, progress.queued) == (1, 1)
