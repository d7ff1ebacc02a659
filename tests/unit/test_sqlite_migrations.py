"""A `shoal.db` of an earlier version goes on where it stood. The files in `shoal_db/` were made by those versions."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from shoal.errors import StorageError
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.model import CrawlState, DeadFilter, Done, ExitUse, LaneUpdate, Progress, Task, TaskState
from shoal.sqlite_file import VERSIONS
from shoal.store.base import PageLook, SinkPlace
from shoal.store.sqlite.store import SqliteStore
from shoal.testing.clock import FakeClock
from shoal.testing.contract.store.rows import item

FILES = Path(__file__).parents[1] / "shoal_db"
WITH_EXITS = (
    "version_2_with_exits",
    "version_3",
    "version_4",
    "version_5",
    "version_6",
    "version_7",
    "version_8",
    "version_9",
)
ALL = ["version_1", "version_2", *WITH_EXITS]
MADE_AT = 1002.0  # by the clock of those files
CRAWL = "books-1"


def made(folder: Path, name: str) -> Path:
    path = folder / "shoal.db"
    db = sqlite3.connect(path)
    db.executescript((FILES / f"{name}.sql").read_text())
    db.close()
    return path


@asynccontextmanager
async def opened(path: Path, clock: FakeClock | None = None) -> AsyncIterator[SqliteFrontier]:
    frontier = await SqliteFrontier.open(path, clock=clock or FakeClock(MADE_AT))
    yield frontier
    await frontier.close()


def counts(progress: Progress) -> dict[str, int]:
    names = ("queued", "delayed", "leased", "done", "dead", "cancelled")
    return {name: getattr(progress, name) for name in names if getattr(progress, name)}


def task(number: int, lane: str = "a.test") -> Task:
    return Task(url=f"https://{lane}/{number}", key=number, lane=lane)


@pytest.mark.parametrize("name", ALL)
async def test_a_file_of_an_earlier_version_keeps_its_crawls_and_counters(tmp_path: Path, name: str) -> None:
    path = made(tmp_path, name)
    has_exits, has_ttl = name in WITH_EXITS, name != "version_1"
    async with opened(path) as frontier:
        found = {crawl.id: crawl for crawl in await frontier.crawls()}
        assert list(found) == ([CRAWL, "news-1", "books-0"] if has_ttl else [CRAWL, "books-0"])
        progress = await frontier.progress(CRAWL)
        assert counts(progress) == (
            {"queued": 9, "delayed": 2, "leased": 1, "done": 2, "dead": 1}
            if has_exits
            else {"queued": 3, "delayed": 2, "leased": 1, "done": 1, "dead": 1}
        )
        assert (progress.outcomes["http_500"], progress.rejected, progress.duplicates) == (1, {"scope": 2}, 2)
        assert found[CRAWL].settings["start_lanes"] == ["a.test"]
        assert (found[CRAWL].budgets.pages, found[CRAWL].budgets.cost, found[CRAWL].dedup_ttl) == (100, 0.0, 0.0)
        assert (found["books-0"].state, found["books-0"].finished) == (CrawlState.CANCELLED, 1000.0)
        assert counts(await frontier.progress("books-0")) == {"leased": 1, "done": 1, "cancelled": 1}
        assert await frontier.samples(CRAWL, "scope") == ["https://x.test/"]
        assert await frontier.rules(CRAWL, "a.test") == (1, b"rules")
    db = sqlite3.connect(path)
    assert db.execute("SELECT version FROM shoal_schema WHERE part = 'frontier'").fetchone() == (VERSIONS["frontier"],)
    db.close()


@pytest.mark.parametrize("name", ALL)
async def test_a_file_of_an_earlier_version_has_the_tables_of_a_new_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "new").mkdir()
    for path in (made(tmp_path, name), tmp_path / "new" / "shoal.db"):
        async with opened(path):
            pass
        await (await SqliteStore.open(path)).close()
    assert shape_of(tmp_path / "shoal.db") == shape_of(tmp_path / "new" / "shoal.db")


async def test_a_file_with_exits_from_before_keys_could_expire_has_the_tables_of_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    path = made(tmp_path, "version_2_with_exits")
    db = sqlite3.connect(path)
    for column in ("dedup_ttl", "generation", "turned"):
        db.execute(f"ALTER TABLE crawl DROP COLUMN {column}")
    db.execute("DROP TABLE past")
    db.commit()
    db.close()
    for file in (path, tmp_path / "new" / "shoal.db"):
        async with opened(file):
            pass
        await (await SqliteStore.open(file)).close()
    assert shape_of(path) == shape_of(tmp_path / "new" / "shoal.db")
    async with opened(path) as frontier:
        assert counts(await frontier.progress(CRAWL))["queued"] == 9


def shape_of(path: Path) -> dict[str, object]:
    """Columns of tables and texts of indexes, by name."""
    db = sqlite3.connect(path)
    found: dict[str, object] = {}
    for kind, name, text in db.execute("SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"):
        columns = db.execute(f"SELECT name, type, pk FROM pragma_table_info('{name}')").fetchall()
        found[name] = sorted(columns) if kind == "table" else " ".join(text.split())
    db.close()
    return found


@pytest.mark.parametrize("name", ALL)
async def test_tasks_of_an_earlier_version_are_lent_and_settled(tmp_path: Path, name: str) -> None:
    clock = FakeClock(MADE_AT)
    async with opened(made(tmp_path, name), clock) as frontier:
        assert (await frontier.put(CRAWL, [task(1), task(2), task(3), task(4)])).duplicates == 4
        (letter,) = await frontier.dead(CRAWL, DeadFilter())
        assert (letter.task.key, letter.reason, letter.detail) == (2, "http_500: server error", "why")
        assert (await frontier.look_up(CRAWL, 1)).state == TaskState.DONE
        retried = await frontier.look_up(CRAWL, 5)
        assert (retried.state, retried.attempts, retried.reason) == (TaskState.DELAYED, 1, "timeout")
        assert retried.task is not None
        assert (retried.task.meta, retried.task.headers, retried.task.priority) == ({"n": [1]}, {"x": "y"}, 2)
        assert await frontier.requeue_dead(CRAWL, DeadFilter()) == 1
        clock.advance(100.0)  # the lease that was out when the file was made has run out, delayed tasks are due
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=0.0))
        lent: set[int] = set()
        async for key in all_lent(frontier, clock):
            lent.add(key)
        expected = {2, 3, 4, 5, 6, 7, 8}
        assert lent == (expected | {*range(21, 26), 30} if name in WITH_EXITS else expected)
        progress = await frontier.progress(CRAWL)
        assert (progress.left, progress.dead, progress.lost) == (0, 0, 1)


async def all_lent(frontier: SqliteFrontier, clock: FakeClock) -> AsyncIterator[int]:
    for _ in range(200):
        batch = await frontier.lease([CRAWL], 10, worker="w", seconds=60.0, horizon=0.0)
        if batch.finished:
            return
        for lease in batch.leases:
            yield lease.task.key
        report = ExitUse(verdict="ok")
        results = [Done(lease=one, exit=report if one.exit != "direct" else None) for one in batch.leases]
        assert (await frontier.settle(results)).stale == []
        clock.advance(1.0)
    raise AssertionError("the crawl does not come to its end")


async def test_pools_sessions_and_costs_outlive_the_way_exits_were_kept(tmp_path: Path) -> None:
    async with opened(made(tmp_path, "version_2_with_exits")) as frontier:
        crawl = (await frontier.crawls())[0]
        assert [(pool.name, pool.exits) for pool in crawl.pools] == [("p", ("p/x", "p/y")), ("q", ("q/anna",))]
        assert await frontier.session(CRAWL, "q/anna") == (1, b"cookies")
        assert (await frontier.progress(CRAWL)).cost == 0.25
        given_back = await frontier.look_up(CRAWL, 21)
        assert (given_back.state, given_back.attempts, given_back.worker) == (TaskState.QUEUED, 0, "")
        lanes = {lane.lane: (lane.waiting, lane.in_flight) for lane in await frontier.lanes(CRAWL)}
        assert (lanes["c.test via p"], lanes["d.test via q"]) == ((5, 0), (1, 0))
        batch = await frontier.lease([CRAWL], 10, worker="w", seconds=60.0, horizon=0.0)
        assert sorted(lease.exit for lease in batch.leases if lease.exit != "direct") == ["p/x", "p/y", "q/anna"]


async def test_a_lease_from_before_losses_were_counted_is_lost_free_of_charge(tmp_path: Path) -> None:
    async with opened(made(tmp_path, "version_4")) as frontier:
        held = await frontier.look_up(CRAWL, 7)
        assert (held.state, held.worker, held.attempts, held.losses) == (TaskState.LEASED, "w1", 1, 0)
        assert await frontier.evict("w1", cause="SIGKILL") == 2  # one of them in another crawl
        lost = await frontier.look_up(CRAWL, 7)
        assert (lost.state, lost.reason, lost.attempts, lost.losses) == (
            TaskState.QUEUED,
            "worker lost: SIGKILL",
            0,
            1,
        )
        assert (await frontier.progress("books-0")).reason == "not needed"


async def test_keys_that_expired_in_an_earlier_version_still_do(tmp_path: Path) -> None:
    clock = FakeClock(MADE_AT)
    async with opened(made(tmp_path, "version_2"), clock) as frontier:
        assert (await frontier.put("news-1", [task(1)])).duplicates == 1
        clock.advance(200.0)
        assert (await frontier.put("news-1", [task(1)])).new == 1


@pytest.mark.parametrize("name", ALL)
async def test_items_of_an_earlier_version_are_read_without_the_frontier(tmp_path: Path, name: str) -> None:
    store = await SqliteStore.open(made(tmp_path, name))
    assert [(item.key, item.data) async for item in store.items()] == [("k1", b'{"t":1}')]
    assert (await store.query("SELECT outcome FROM fetches", limit=9)).rows == [("ok",)]
    (line,) = await store.fetches_of([CRAWL], "https://a.test/1")
    assert (line.key, line.request) == (1, "")
    await store.write([], [msgspec.structs.replace(line, key=2, request="POST 3 B abc")])
    assert (await store.query("SELECT key, request FROM fetches ORDER BY key", limit=9)).rows == [
        (1, ""),
        (2, "POST 3 B abc"),
    ]
    await store.close()


@pytest.mark.parametrize("name", [*ALL, "store_4", "store_5", "store_6"])
async def test_items_of_an_earlier_version_can_go_and_come_back(tmp_path: Path, name: str) -> None:
    store = await SqliteStore.open(made(tmp_path, name))
    (before,) = await store.items_named("books", ["k1"])
    sink = await store.outbox.add(SinkPlace(spider="books", url="-"))
    await store.outbox.passed(sink, await store.outbox.read(sink, limit=9))
    look = PageLook(spider="books", url=before.url, keys=(), at=5000.0, token=2**61)
    await store.write([], [], looks=[look])
    assert await store.mark_gone("books", missing_before=6000.0, at=6000.0) == 1
    await store.write([], [], looks=[msgspec.structs.replace(look, keys=("k1",), at=7000.0)])
    (after,) = await store.items_named("books", ["k1"])
    assert after == msgspec.structs.replace(before, last_seen=7000.0)
    changes = [(change.change, change.version) for change in await store.outbox.read(sink, limit=9)]
    assert changes == [("gone", before.version + 1), ("new", before.version + 2)]
    (line,) = await store.fetches_of([CRAWL], "https://a.test/1")
    assert (line.etag, line.last_modified) == ("", "")
    await store.write([], [msgspec.structs.replace(line, token=2**61, etag='"1"', last_modified="then")])
    newest, *_ = await store.attempts(line.crawl, line.key)
    assert (newest.etag, newest.last_modified) == ('"1"', "then")
    await store.close()


@pytest.mark.parametrize("name", [*ALL, "store_4"])
async def test_items_of_an_earlier_version_get_an_outbox(tmp_path: Path, name: str) -> None:
    path = made(tmp_path, name)
    store = await SqliteStore.open(path)
    (before,) = await store.items_named("books", ["k1"])
    sink = await store.outbox.add(SinkPlace(spider="books", url="-"))
    assert await store.outbox.read(sink, limit=9) == []
    now = {"key": "k1", "spider": "books", "data": {"t": 9}, "token": 2**62, "at": 5000.0}
    await store.write([item(**now)], [])
    (change,) = await store.outbox.read(sink, limit=9)
    assert (change.key, change.version, change.change, change.data) == ("k1", before.version + 1, "changed", b'{"t":9}')
    assert await store.outbox.replay(sink) == await store.count_items()
    await store.close()
    db = sqlite3.connect(path)
    assert db.execute("SELECT version FROM shoal_schema WHERE part = 'store'").fetchone() == (VERSIONS["store"],)
    db.close()


@pytest.mark.parametrize("name", ["store_4", "store_5", "store_6"])
async def test_a_store_of_the_version_before_has_the_tables_of_a_new_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "new").mkdir()
    for path in (made(tmp_path, name), tmp_path / "new" / "shoal.db"):
        await (await SqliteStore.open(path)).close()
    assert shape_of(tmp_path / "shoal.db") == shape_of(tmp_path / "new" / "shoal.db")


@pytest.mark.parametrize("part", ["frontier", "store"])
async def test_a_file_with_one_newer_part_is_refused_by_every_part_and_left_alone(tmp_path: Path, part: str) -> None:
    path = made(tmp_path, "version_1")
    db = sqlite3.connect(path)
    db.execute("UPDATE shoal_schema SET version = 99 WHERE part = ?", (part,))
    db.commit()
    db.close()
    before = path.read_bytes()
    for opening in (SqliteFrontier.open, SqliteStore.open):
        with pytest.raises(StorageError, match="was written by a newer shoal: upgrade shoal"):
            await opening(path)
    assert path.read_bytes() == before


async def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = made(tmp_path, "version_1")
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE lane_rest (a)")
    before = list(db.iterdump())
    with pytest.raises(StorageError, match="lane_rest already exists"):
        await SqliteFrontier.open(path)
    assert list(db.iterdump()) == before
    db.close()
