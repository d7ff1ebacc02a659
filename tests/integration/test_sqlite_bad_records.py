"""A row of the SQLite frontier that cannot be read is set aside: no worker stops, the crawl ends, its end says so."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from shoal.frontier.rules.tasks import BAD_RECORD, SET_ASIDE
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.frontier.sqlite.mend import UNKNOWN_URL
from shoal.model import Crawl, CrawlState, DeadFilter, Done, Lease, LeaseBatch, Pool, Retry, TaskState
from shoal.policy.failures import faults_of
from shoal.testing.contract.frontier.case import CRAWL, check_counts, make_task
from shoal.testing.contract.frontier.control_promises import beat_of
from shoal.testing.waiting import eventually

TASKS = 12
POOL = Pool(name="proxies", exits=("x", "y"), interval=0.0, host_interval=0.0, host_cap=100)
VIA_POOL = "b.test via proxies"


@pytest.fixture
async def frontier(tmp_path: Path) -> AsyncIterator[SqliteFrontier]:
    frontier = await SqliteFrontier.open(tmp_path / "shoal.db")
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=100, pools=(POOL,)))
    yield frontier
    await frontier.close()


def damage(folder: Path, statement: str) -> None:
    db = sqlite3.connect(folder / "shoal.db", isolation_level=None)
    assert db.execute(statement).rowcount
    db.close()


async def lend(frontier: SqliteFrontier, limit: int = 100, *, seconds: float = 3.0) -> LeaseBatch:
    return await frontier.lease([CRAWL], limit, worker="w", seconds=seconds, horizon=1.0)


async def prepare(frontier: SqliteFrontier) -> list[Lease]:
    """A crawl with tasks in every state, some via a pool; gives the leases."""
    direct = [make_task(number, max_attempts=9) for number in range(1, TASKS - 3)]
    via = [make_task(number, VIA_POOL, pool="proxies") for number in range(TASKS - 3, TASKS + 1)]
    await frontier.put(CRAWL, direct + via)
    await frontier.beat(beat_of("w"))
    one, two, three, *rest = (await lend(frontier, 6)).leases
    await frontier.settle([Retry(lease=one, reason="again", delay=0.01), Retry(lease=two, reason="again")])
    await frontier.settle([Done(lease=three, notes={"items": 1})])
    await frontier.bury(CRAWL, [(make_task(99), "by hand")])
    return rest


ONE = "(SELECT min(id) FROM task WHERE state = {})"
DAMAGES = {
    # The statement, and how many tasks it costs.
    "a queued task": (f"UPDATE task SET payload = x'ff00ff' WHERE id = {ONE.format(0)}", 1),
    "a queued task that is text": (f"UPDATE task SET payload = 'garbage' WHERE id = {ONE.format(0)}", 1),
    "a queued task that is empty": (f"UPDATE task SET payload = x'' WHERE id = {ONE.format(0)}", 1),
    "a delayed task": (f"UPDATE task SET payload = x'ff00ff' WHERE id = {ONE.format(1)}", 1),
    "a leased task": (f"UPDATE task SET payload = x'ff00ff' WHERE id = {ONE.format(2)}", 1),
    "a dead letter": (f"UPDATE task SET payload = x'ff00ff' WHERE id = {ONE.format(3)}", 0),
    "attempts that are no number": (f"UPDATE task SET attempts = 'many' WHERE id = {ONE.format(0)}", 1),
    "a due time that is no number": (f"UPDATE task SET at = 'soon' WHERE id = {ONE.format(1)}", 1),
    "a lane that is not there": (f"UPDATE task SET lane = 4711 WHERE id = {ONE.format(1)}", 0),
    "a lane's next start": ("UPDATE lane SET next_start = 'soon' WHERE name = 'a.test'", 0),
    "a lane's interval": ("UPDATE lane SET interval = 'slow' WHERE name = 'a.test'", 0),
    "a lane's cap": ("UPDATE lane SET cap = 'few' WHERE name = 'a.test'", 0),
    "a lane's requests in flight": ("UPDATE lane SET in_flight = 'some' WHERE name = 'a.test'", 0),
    "a lane's waiting tasks": ("UPDATE lane SET waiting = 'some' WHERE name = 'a.test'", 0),
    "a lane's waiting tasks that were lost count": ("UPDATE lane SET waiting = 0 WHERE name = 'a.test'", 0),
    "a lane's opener": ("UPDATE lane SET opener = 'who' WHERE name = 'a.test'", 0),
    "a lane's exits": ("UPDATE lane SET exits = x'c1c1' WHERE exits <> x''", 0),
    "a crawl's counter": ("UPDATE crawl SET queued = 'some'", 0),
    "a crawl's done tasks": ("UPDATE crawl SET done = 'some'", 0),
    "a crawl's token": ("UPDATE crawl SET last_token = 'x'", 0),
    "a crawl's state": ("UPDATE crawl SET state = 'odd'", 0),
    "a crawl's clock": ("UPDATE crawl SET clock_shift = 'x'", 0),
    "a crawl's pools": ("UPDATE crawl_about SET pools = '{garbage'", 4),
    "a crawl's exits": ("UPDATE crawl_about SET exit_names = x'ff'", 0),
    "a named counter": ("UPDATE counter SET value = 'x' WHERE name = 'items'", 0),
    "a heartbeat": ("UPDATE worker SET beat = '{garbage'", 0),
}


@pytest.mark.parametrize("kind", DAMAGES)
async def test_the_crawl_goes_on_to_its_end(
    kind: str, frontier: SqliteFrontier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    statement, lost = DAMAGES[kind]
    held = await prepare(frontier)
    damage(tmp_path, statement)

    async def work() -> bool:
        batch = await lend(frontier, seconds=0.2)
        await frontier.settle([Done(lease=lease) for lease in batch.leases])
        await frontier.lanes(CRAWL)
        await frontier.exits(CRAWL)
        await frontier.dead(CRAWL, DeadFilter())
        await frontier.workers()
        assert [crawl.id for crawl in await frontier.crawls()] == [CRAWL]
        return bool(batch.finished)

    assert not (await frontier.settle([Done(lease=lease) for lease in held])).failed
    await eventually(work)
    progress = await frontier.progress(CRAWL)
    assert progress.state is CrawlState.FINISHED, progress
    assert progress.left == 0
    assert progress.done >= TASKS - lost
    assert progress.known == TASKS + 1
    noted = sum(number for name, number in progress.notes.items() if name.startswith(SET_ASIDE))
    faults = [fault for fault in faults_of(progress, max_failures="100%") if "could not be read" in fault]
    assert len(faults) == bool(noted)
    said = [record for record in caplog.records if "could not be read" in record.getMessage()]
    assert len(said) == bool(noted)
    assert noted or kind in ("a leased task", "a heartbeat", "a lane's waiting tasks that were lost count")


async def test_keys_without_a_task_are_not_taken_for_done_ones(frontier: SqliteFrontier, tmp_path: Path) -> None:
    await frontier.know(CRAWL, range(100, 200))
    await frontier.put(CRAWL, [make_task(1), make_task(2), make_task(3)])
    await frontier.settle([Done(lease=(await lend(frontier, 1)).leases[0])])
    damage(tmp_path, "UPDATE crawl SET done = 'some'")
    await frontier.settle([Done(lease=(await lend(frontier, 1)).leases[0])])
    progress = await frontier.progress(CRAWL)
    assert (progress.done, progress.known) == (2, 3)


async def test_a_task_whose_key_cannot_be_read_gets_it_back_from_its_record(
    frontier: SqliteFrontier, tmp_path: Path
) -> None:
    await frontier.put(CRAWL, [make_task(2**60), make_task(2), make_task(3)])
    damage(tmp_path, f"UPDATE task SET key = 'x' WHERE key = {2**60}")
    damage(tmp_path, "UPDATE task SET payload = x'dc00ff' WHERE key = 2")
    assert [lease.task.key for lease in (await lend(frontier)).leases] == [3]
    assert (await frontier.look_up(CRAWL, 2**60)).reason == BAD_RECORD
    assert await frontier.requeue_dead(CRAWL, DeadFilter(key=2**60)) == 1
    (lease,) = (await lend(frontier)).leases
    assert not (await frontier.settle([Done(lease=lease)])).stale
    assert (await frontier.look_up(CRAWL, 2**60)).state is TaskState.DONE


async def test_a_task_whose_url_can_be_told_is_a_dead_letter_that_can_be_fetched_again(
    frontier: SqliteFrontier, tmp_path: Path
) -> None:
    long_url = f"https://a.test/{'x' * 60}"
    tasks = [make_task(1), msgspec.structs.replace(make_task(2**60), url=long_url), make_task(3)]
    await frontier.put(CRAWL, tasks)
    # The array says that it is longer than it is.
    damage(tmp_path, "UPDATE task SET payload = CAST(x'dc00ff' || substr(payload, 2) AS BLOB) WHERE key <> 3")
    assert [lease.task.key for lease in (await lend(frontier)).leases] == [3]
    letters = {letter.task.key: letter for letter in await frontier.dead(CRAWL, DeadFilter())}
    assert {key: letter.task.url for key, letter in letters.items()} == {1: "https://a.test/1", 2**60: long_url}
    assert {letter.reason for letter in letters.values()} == {BAD_RECORD}
    assert (await frontier.look_up(CRAWL, 2**60)).reason == BAD_RECORD
    await check_counts(frontier, leased=1, dead=2)
    assert await frontier.requeue_dead(CRAWL, DeadFilter()) == 2
    assert {lease.task.url for lease in (await lend(frontier)).leases} == {"https://a.test/1", long_url}


async def test_a_task_of_which_nothing_is_left_is_shown_as_unknown_and_never_lent(
    frontier: SqliteFrontier, tmp_path: Path
) -> None:
    await frontier.put(CRAWL, [make_task(1)])
    damage(tmp_path, "UPDATE task SET payload = x'ff00ff'")
    # Looking at it finds it, too.
    assert (await frontier.look_up(CRAWL, 1)).state is TaskState.DEAD
    (letter,) = await frontier.dead(CRAWL, DeadFilter())
    assert (letter.task.url, letter.task.lane, letter.reason) == (UNKNOWN_URL, "a.test", BAD_RECORD)
    assert r"\xff\x00\xff" in letter.detail
    assert (await frontier.progress(CRAWL)).notes == {f"{SET_ASIDE}task": 1}
    assert await frontier.requeue_dead(CRAWL, DeadFilter()) == 0
    assert CRAWL in (await lend(frontier)).finished


@pytest.mark.parametrize("value", ["'{garbage'", "x'ff'", "'7'"])
async def test_a_crawl_whose_settings_cannot_be_read_is_listed_as_refused(
    frontier: SqliteFrontier, tmp_path: Path, value: str
) -> None:
    await frontier.open_crawl(Crawl(id="other-1", spider="other"))
    damage(tmp_path, f"UPDATE crawl_about SET settings = {value} WHERE spider = 'other'")
    refusals = {crawl.id: crawl.refusal for crawl in await frontier.crawls()}
    assert refusals[CRAWL] == ""
    assert "the record of crawl 'other-1'" in refusals["other-1"]
    assert "cannot be read" in refusals["other-1"]


async def test_input_that_cannot_be_stored_does_not_cause_a_walk_each_time(
    frontier: SqliteFrontier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        with pytest.raises(TypeError):
            await frontier.put(CRAWL, [make_task(1, meta={"what": object()})])
    assert not caplog.records
    await frontier.put(CRAWL, [make_task(1)])
    damage(tmp_path, "UPDATE task SET payload = x'ff00ff'")
    assert not (await lend(frontier)).leases
    await check_counts(frontier, dead=1)
