"""Frontier promises about putting tasks, and about keys that are known without a task."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.tasks import KNOWN_KEYS
from shoal.model import Budgets, Crawl, CrawlState, Dead, DeadFilter, Done, LaneUpdate, Task, TaskState
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import (
    CRAWL,
    FrontierCase,
    check_counts,
    keys,
    listed,
    make_task,
    take,
    take_one,
)


class PutPromises(FrontierCase):
    """Dedup, durability, budgets, forgetting, burying."""

    async def test_stores_a_key_put_twice_once(self, frontier: Frontier) -> None:
        report = await frontier.put(CRAWL, [make_task(1), make_task(2), make_task(1)])
        assert (report.new, report.duplicates) == (2, 1)
        report = await frontier.put(CRAWL, [make_task(2, lane="b.test"), make_task(3)])
        assert (report.new, report.duplicates) == (1, 1)
        assert (await frontier.progress(CRAWL)).duplicates == 2
        await check_counts(frontier, queued=3)

    async def test_stores_no_key_again_that_is_leased_done_or_dead(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1), make_task(2), make_task(3)])
        batch = await take(frontier)
        await frontier.settle([Done(lease=batch.leases[0]), Dead(lease=batch.leases[1], reason="gone")])
        report = await frontier.put(CRAWL, [make_task(1), make_task(2), make_task(3)])
        assert (report.new, report.duplicates) == (0, 3)
        await check_counts(frontier, leased=1, done=1, dead=1)

    async def test_accepted_tasks_outlive_the_process(
        self, frontier: Frontier, tmp_path: Path, clock: FakeClock
    ) -> None:
        task = make_task(-(2**63), headers={"x": "ü"}, body=b"\x00\xff", meta={"page": [1, 2.5, None]}, depth=3)
        await frontier.put(CRAWL, [task, make_task(2**63 - 1)])
        await frontier.close()
        again = await self.open(tmp_path, clock)
        batch = await take(again)
        assert batch.leases[0].task == task
        assert keys(batch) == [-(2**63), 2**63 - 1]
        await again.close()

    async def test_large_tasks_put_or_found_together_are_kept_whole(self, frontier: Frontier) -> None:
        tasks = [make_task(number, body=bytes([number]) * 400_000) for number in range(1, 11)]
        assert (await frontier.put(CRAWL, [make_task(0), *tasks[:5]])).new == 6
        batch = await take(frontier, 1)
        # The first five are known now, among the others.
        settled = await frontier.settle([Done(lease=batch.leases[0], found=tasks)])
        assert (settled.stale, settled.failed) == ([], {})
        await check_counts(frontier, queued=10, done=1)
        assert [lease.task for lease in (await take(frontier)).leases] == tasks

    async def test_gives_back_a_crawl_that_is_opened_again(self, frontier: Frontier) -> None:
        crawl = Crawl(id="other", spider="s", interval=2.0, needs_rules=True, settings={"a": [1]}, created=5.0)
        assert await frontier.open_crawl(crawl) == crawl
        assert await frontier.open_crawl(crawl) == crawl
        assert [one.id for one in await listed(frontier)] == [CRAWL, "other"]

    async def test_a_crawl_opened_again_takes_over_its_new_settings(self, frontier: Frontier, clock: FakeClock) -> None:
        first = await frontier.open_crawl(Crawl(id="other", spider="s", interval=5.0, cap=2, created=5.0))
        await frontier.put("other", [make_task(number) for number in range(4)])
        await frontier.put("other", [make_task(9, "b.test")])
        await frontier.update_lane("other", "b.test", LaneUpdate(interval=30.0, base_interval=30.0, cap=1))
        budgets = Budgets(pages=5)
        again = Crawl(id="other", spider="t", interval=0.5, cap=3, budgets=budgets, settings={"a": 1})
        taken = await frontier.open_crawl(again)
        assert (taken.spider, taken.created, taken.budgets, taken.settings) == ("s", 5.0, budgets, {"a": 1})
        assert taken.state == first.state
        lanes = {lane.lane: (lane.interval, lane.cap) for lane in await frontier.lanes("other")}
        assert lanes == {"a.test": (0.5, 3), "b.test": (30.0, 1)}
        assert (await frontier.put("other", [make_task(100)])).refused == {100: "max_pages"}

    async def test_counts_links_to_known_pages_that_workers_did_not_send(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1)], rejected={"duplicate": 3, "depth": 2})
        progress = await frontier.progress(CRAWL)
        assert (progress.duplicates, progress.rejected) == (3, {"depth": 2})

    async def test_names_a_crawl_that_does_not_exist(self, frontier: Frontier) -> None:
        with pytest.raises(UsageError, match="no crawl 'none'"):
            await frontier.put("none", [make_task(1)])
        with pytest.raises(UsageError, match="no crawl 'none'"):
            await frontier.progress("none")

    async def test_keeps_a_delayed_task_back_until_it_is_due(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(1, delay=5.0)])
        await check_counts(frontier, delayed=1)
        assert (await take(frontier)).leases == []
        clock.advance(5.0)
        assert keys(await take(frontier)) == [1]

    async def test_tells_when_the_first_delayed_task_is_due(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(1, delay=900.0), make_task(2, delay=60.0), make_task(3)])
        assert (await frontier.progress(CRAWL)).due_in == pytest.approx(60.0)
        clock.advance(50.0)
        assert (await frontier.progress(CRAWL)).due_in == pytest.approx(10.0)
        clock.advance(20.0)
        # No lease call since: still counted as delayed, though it is due.
        late = await frontier.progress(CRAWL)
        assert (late.delayed, late.due_in) == (2, 0.0)
        await take(frontier)
        assert (await frontier.progress(CRAWL)).due_in == pytest.approx(830.0)

    async def test_counts_merged_and_rejected_urls_with_samples(self, frontier: Frontier) -> None:
        merged = [make_task(1, merged=True) for _ in range(30)]
        await frontier.put(
            CRAWL, [make_task(1), *merged], rejected={"scope": 7}, samples=[("scope", "https://x.test/")]
        )
        assert (await frontier.progress(CRAWL)).rejected == {"merged": 30, "scope": 7}
        assert await frontier.samples(CRAWL, "merged") == [merged[0].url]
        many = [make_task(1, lane=f"{number}.test", merged=True) for number in range(30)]
        await frontier.put(CRAWL, many)
        assert len(await frontier.samples(CRAWL, "merged")) == 20
        assert await frontier.samples(CRAWL, "scope") == ["https://x.test/"]
        assert await frontier.samples(CRAWL, "none") == []

    @pytest.mark.parametrize(
        ("budgets", "reason"),
        [
            (Budgets(pages=2), "max_pages"),
            (Budgets(per_lane=2), "max_per_host"),
            (Budgets(per_shape=2), "max_per_shape"),
        ],
        ids=["pages", "per lane", "per shape"],
    )
    async def test_refuses_tasks_beyond_a_budget(self, frontier: Frontier, budgets: Budgets, reason: str) -> None:
        await frontier.open_crawl(Crawl(id="small", spider="s", budgets=budgets, interval=0.0))
        report = await frontier.put("small", [make_task(number, shape=9) for number in range(4)])
        assert (report.new, report.refused) == (2, {2: reason, 3: reason})
        batch = await frontier.lease(["small"], 1, worker="w", seconds=60.0, horizon=0.0)
        settled = await frontier.settle([Done(lease=batch.leases[0], found=[make_task(4, shape=9)])])
        assert settled.refused == {4: reason}
        progress = await frontier.progress("small")
        assert (progress.known, progress.rejected) == (2, {reason: 3})
        assert (await frontier.look_up("small", 4)).state == TaskState.UNKNOWN
        assert make_task(4).url in await frontier.samples("small", reason)

    async def test_budgets_of_one_host_or_shape_leave_the_others_alone(self, frontier: Frontier) -> None:
        budgets = Budgets(per_lane=2, per_shape=1)
        await frontier.open_crawl(Crawl(id="small", spider="s", budgets=budgets))
        tasks = [make_task(1, shape=1), make_task(2, shape=1), make_task(3, shape=2), make_task(4, shape=3)]
        report = await frontier.put(
            "small", [*tasks, make_task(5, lane="b.test", shape=1), make_task(6, lane="c.test")]
        )
        assert report.refused == {2: "max_per_shape", 4: "max_per_host"}

    async def test_a_forgotten_key_can_be_put_again(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1), make_task(2), make_task(3), make_task(4)])
        batch = await take(frontier, 3)
        await frontier.settle([Done(lease=batch.leases[0]), Dead(lease=batch.leases[1], reason="gone: 404")])
        before = await frontier.progress(CRAWL)
        await frontier.forget(CRAWL, [1, 2, 3, 4, 5])
        report = await frontier.put(CRAWL, [make_task(1), make_task(2), make_task(3), make_task(4)])
        assert (report.new, report.duplicates) == (2, 2)
        await check_counts(frontier, queued=3, leased=1, done=2)
        assert (await frontier.progress(CRAWL)).epoch > before.epoch
        assert (await take(frontier)).epoch > before.epoch

    async def test_a_put_into_a_finished_crawl_sets_it_running(self, frontier: Frontier) -> None:
        assert (await take(frontier)).finished == (CRAWL,)
        await frontier.put(CRAWL, [make_task(1)])
        batch = await take(frontier)
        assert (keys(batch), batch.finished) == ([1], ())

    async def test_looks_up_the_state_of_one_key(self, frontier: Frontier, clock: Callable[[], float]) -> None:
        await frontier.put(CRAWL, [make_task(number) for number in (1, 2, 3, 4)] + [make_task(5, delay=9.0)])
        batch = await take(frontier, 3)
        await frontier.settle([Done(lease=batch.leases[0]), Dead(lease=batch.leases[1], reason="gone", detail="why")])
        states = [(await frontier.look_up(CRAWL, key)).state for key in range(1, 7)]
        assert states == ["done", "dead", "leased", "queued", "delayed", "unknown"]
        letter, held = await frontier.look_up(CRAWL, 2), await frontier.look_up(CRAWL, 3)
        assert (letter.task, letter.reason, letter.detail, letter.attempts) == (make_task(2), "gone", "why", 1)
        assert (held.worker, held.due_in) == ("w1", 60.0)
        assert (await frontier.look_up(CRAWL, 5)).due_in == 9.0

    async def test_finds_every_task_of_a_url_that_is_not_done(self, frontier: Frontier) -> None:
        url, lanes = "https://a.test/form?é", ["a.test", "a.test via p"]
        kinds: list[dict[str, Any]] = [
            {}, {"method": "POST", "body": b"1"}, {"method": "POST", "body": b"2"}, {"delay": 9.0}, {},
        ]  # fmt: skip
        tasks = [Task(url=url, key=number, lane="a.test", **kind) for number, kind in enumerate(kinds, start=1)]
        others = [
            Task(url=f"https://a.test/?next={url}", key=11, lane="a.test"),
            Task(url=f"{url}&more", key=12, lane="a.test"),
            Task(url=url, key=13, lane="elsewhere.test"),
        ]
        await frontier.put(CRAWL, tasks)
        batch = await take(frontier, 3)
        await frontier.put(CRAWL, others)
        ended = {lease.task.key: lease for lease in batch.leases if lease.task.key in (1, 2)}
        await frontier.settle([Done(lease=ended[1]), Dead(lease=ended[2], reason="gone", detail="why")])
        found = {status.task.key: status for status in await frontier.tasks_of(CRAWL, url, lanes=lanes) if status.task}
        assert {key: status.state for key, status in found.items()} == {
            2: "dead", 3: "leased", 4: "delayed", 5: "queued",
        }  # fmt: skip
        assert [status for _, status in sorted(found.items())] == [
            await frontier.look_up(CRAWL, key) for key in sorted(found)
        ]
        assert await frontier.tasks_of(CRAWL, "https://a.test/never", lanes=lanes) == []
        await frontier.set_state(CRAWL, CrawlState.CANCELLED)
        states = {status.state for status in await frontier.tasks_of(CRAWL, url, lanes=lanes)}
        assert states == {"dead", "leased", "cancelled"}

    async def test_finds_a_url_among_thousands_of_tasks_that_wait(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(number) for number in range(2500)])
        await frontier.put(CRAWL, [make_task(number, delay=9.0) for number in range(2500, 3700)])
        for number in (0, 1200, 2499, 2500, 3699):
            (status,) = await frontier.tasks_of(CRAWL, f"https://a.test/{number}", lanes=["a.test"])
            assert status.task == make_task(number, delay=9.0 if number >= 2500 else 0.0)

    async def test_a_task_that_cannot_be_stored_leaves_nothing_behind(self, frontier: Frontier) -> None:
        with pytest.raises((TypeError, ValueError, OverflowError)):
            await frontier.put(CRAWL, [make_task(1), make_task(2, meta={"no": object()})])
        await check_counts(frontier)
        await frontier.put(CRAWL, [make_task(1)])
        lease = await take_one(frontier)
        assert msgspec.structs.asdict(lease.task) == msgspec.structs.asdict(make_task(1))

    async def test_a_buried_task_is_a_dead_letter_that_no_worker_saw(
        self, frontier: Frontier, clock: Callable[[], float]
    ) -> None:
        report = await frontier.bury(CRAWL, [(make_task(1), "inbox: no URL"), (make_task(2, "b.test"), "inbox: ü")])
        assert (report.new, report.duplicates) == (2, 0)
        await check_counts(frontier, dead=2)
        assert (await frontier.progress(CRAWL)).outcomes == {"inbox": 2}
        (letter,) = await frontier.dead(CRAWL, DeadFilter(reason="inbox: no"))
        assert (letter.task, letter.reason, letter.attempts, letter.at) == (make_task(1), "inbox: no URL", 0, clock())
        status = await frontier.look_up(CRAWL, 2)
        assert (status.state, status.task, status.reason) == (TaskState.DEAD, make_task(2, "b.test"), "inbox: ü")
        assert ((await take(frontier)).leases, await frontier.lanes(CRAWL)) == ([], [])

    async def test_buries_a_key_once_and_never_one_that_is_known(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        letters = [(make_task(1), "bad: a"), (make_task(2), "bad: b"), (make_task(2), "bad: c")]
        report = await frontier.bury(CRAWL, letters)
        assert (report.new, report.duplicates) == (1, 2)
        # As after a lost reply.
        report = await frontier.bury(CRAWL, letters)
        assert (report.new, report.duplicates) == (0, 3)
        assert (await frontier.put(CRAWL, [make_task(2)])).duplicates == 1
        assert (await frontier.progress(CRAWL)).duplicates == 6
        assert [letter.reason for letter in await frontier.dead(CRAWL, DeadFilter())] == ["bad: b"]
        await check_counts(frontier, queued=1, dead=1)

    @pytest.mark.parametrize("state", CrawlState)
    async def test_burying_leaves_the_state_of_the_crawl(self, frontier: Frontier, state: CrawlState) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        await frontier.settle([Done(lease=await take_one(frontier))])
        if state is CrawlState.FINISHED:
            assert (await take(frontier)).finished == (CRAWL,)
        else:
            await frontier.set_state(CRAWL, state)
        before = (await listed(frontier))[0]
        assert (await frontier.bury(CRAWL, [(make_task(2), "bad"), (make_task(3, "b.test"), "bad")])).new == 2
        await check_counts(frontier, done=1, dead=2)
        assert (await listed(frontier))[0] == before
        assert before.state is state

    async def test_a_budget_refuses_letters_like_tasks(self, frontier: Frontier) -> None:
        await frontier.open_crawl(Crawl(id="small", spider="s", budgets=Budgets(pages=3), interval=0.0))
        await frontier.put("small", [make_task(1)])
        letters = [(make_task(number), "bad") for number in range(2, 6)]
        report = await frontier.bury("small", letters)
        assert (report.new, report.refused) == (2, {4: "max_pages", 5: "max_pages"})
        progress = await frontier.progress("small")
        assert (progress.known, progress.dead, progress.rejected) == (3, 2, {"max_pages": 2})
        assert (await frontier.put("small", [make_task(9)])).refused == {9: "max_pages"}

    async def test_a_letter_that_cannot_be_stored_leaves_nothing_behind(self, frontier: Frontier) -> None:
        with pytest.raises((TypeError, ValueError, OverflowError)):
            await frontier.bury(CRAWL, [(make_task(1), "bad"), (make_task(2, meta={"no": object()}), "bad")])
        await check_counts(frontier)

    async def test_a_task_that_allows_no_attempt_stays_a_dead_letter_when_others_are_requeued(
        self, frontier: Frontier
    ) -> None:
        await frontier.bury(CRAWL, [(make_task(1, max_attempts=0), "bad"), (make_task(2), "bad")])
        assert await frontier.requeue_dead(CRAWL, DeadFilter(), limit=2) == 1
        assert await frontier.requeue_dead(CRAWL, DeadFilter(key=1)) == 0
        await check_counts(frontier, queued=1, dead=1)
        assert keys(await take(frontier)) == [2]
        await frontier.forget(CRAWL, [1])
        assert (await frontier.look_up(CRAWL, 1)).state == TaskState.UNKNOWN


LANES = ("a.test", "b.test", "c.test", "d.test")
MANY = 12_000
TTL = 100.0
WEEKLY = Crawl(id="weekly", spider="s", interval=0.0, cap=1000, dedup_ttl=TTL)


class KnownPromises(FrontierCase):
    """A known key is a duplicate, and never was a task."""

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
        # It is known already: its time does not restart.
        assert await frontier.know(WEEKLY.id, [1]) == 0
        assert (await frontier.put(WEEKLY.id, [make_task(1)])).duplicates == 1
        clock.advance(0.5 * TTL + 0.002)
        assert (await frontier.look_up(WEEKLY.id, 1)).state == TaskState.UNKNOWN
        assert (await frontier.put(WEEKLY.id, [make_task(1)])).new == 1
        progress = await frontier.progress(WEEKLY.id)
        assert (progress.known, progress.queued) == (1, 1)
