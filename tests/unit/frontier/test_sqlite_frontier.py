"""What only the SQLite frontier has: its file, its query plans, its processes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import multiprocessing
import os
import sqlite3
from pathlib import Path

import pytest

from shoal.errors import StorageError, UsageError
from shoal.frontier import open_frontier
from shoal.frontier.rules.constants import MAX_PUT_OFF
from shoal.frontier.sqlite import lanes, put, rows, settle
from shoal.frontier.sqlite import lease as sqlite_lease
from shoal.frontier.sqlite import put as sqlite_put
from shoal.frontier.sqlite import settle as sqlite_settle
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.frontier.sqlite.ledger import NOT_ALONE, WRITE_LANES
from shoal.model import Crawl, Done, ExitUse, Pool, Retry, Task
from shoal.sqlite_file import update_of
from shoal.testing.clock import FakeClock

CRAWL = "c"
HOT_QUERIES = {
    "expired leases": settle.EXPIRED,
    "due tasks": sqlite_lease.DUE,
    "ready lanes": lanes.READY,
    "next tasks": rows.NEXT_TASKS,
    "next lane": sqlite_lease.NEXT_LANE,
    "next due task": sqlite_lease.NEXT_DUE,
    "next expiry": sqlite_lease.NEXT_EXPIRY,
    "held tasks": sqlite_settle.LEASED_KEYS,
    "held tasks of several kinds": sqlite_settle.LEASED_WITH_KIND,
    "next tasks of a kind": rows.NEXT_TASKS_OF_KIND,
    "next lane with tasks of a kind": rows.NEXT_OF_KIND,
    "requests on their way": rows.ON_THEIR_WAY,
    "known keys": sqlite_put.KNOWN,
    "lanes of other crawls": lanes.OTHERS,
    "what is kept of a host": lanes.KEPT,
    "lanes that are not alone": NOT_ALONE,
    "keys that ended": put.KNOWN_PAST,
    "keys that expired": put.EXPIRED_PAST,
}


@pytest.mark.parametrize("query", HOT_QUERIES.values(), ids=HOT_QUERIES.keys())
async def test_no_hot_query_looks_through_all_rows(tmp_path: Path, query: str) -> None:
    await (await SqliteFrontier.open(tmp_path / "shoal.db")).close()
    connection = sqlite3.connect(tmp_path / "shoal.db")
    values = ["[1]"] + [1] * 9 if "json_each" in query else [1] * 9
    plan = connection.execute(f"EXPLAIN QUERY PLAN {query}", values[: query.count("?")]).fetchall()
    connection.close()
    assert plan
    for *_, step in plan:
        assert step.startswith("SEARCH") or step == "SCAN json_each VIRTUAL TABLE INDEX 1:"


@pytest.mark.parametrize("query", [sqlite_settle.LEASED_KEYS, rows.ON_THEIR_WAY], ids=["held", "on their way"])
async def test_a_leased_task_is_found_by_its_key(tmp_path: Path, query: str) -> None:
    await (await SqliteFrontier.open(tmp_path / "shoal.db")).close()
    connection = sqlite3.connect(tmp_path / "shoal.db")
    *_, (*_, last) = connection.execute(f"EXPLAIN QUERY PLAN {query}", ("[1]", 1)).fetchall()
    connection.close()
    assert last == "SEARCH task USING INDEX task_held (crawl=? AND key=?)"


@pytest.mark.parametrize(
    "query",
    [
        rows.tasks_select(128),
        update_of(rows.FREE, 128, 2),
        update_of(rows.LEND, 128, 4),
        update_of(rows.START, 128, 8),
        update_of(rows.WISH, 128, 3),
        update_of(WRITE_LANES, 128, 15),
    ],
    ids=["next tasks", "landed", "lent", "started", "wishes", "lanes"],
)
async def test_no_statement_on_many_lanes_or_leases_looks_through_all_rows(tmp_path: Path, query: str) -> None:
    await (await SqliteFrontier.open(tmp_path / "shoal.db")).close()
    connection = sqlite3.connect(tmp_path / "shoal.db")
    plan = connection.execute(f"EXPLAIN QUERY PLAN {query}", [1] * query.count("?")).fetchall()
    connection.close()
    assert any(step.startswith("SEARCH") for *_, step in plan)
    assert not [step for *_, step in plan if step in ("SCAN task", "SCAN lane")]


async def call_over(frontier: SqliteFrontier, *, lanes: int) -> list[str]:
    """The statements of a lease call that names a landed request of each of these lanes and gets its next task."""
    name = f"{lanes} lanes"
    await frontier.open_crawl(Crawl(id=name, spider="s", interval=0.0, cap=1))
    hosts = [f"{number}.test" for number in range(lanes)]
    for page in (1, 2):
        first_key = page * 1000
        await frontier.put(
            name, [Task(url=f"https://{host}/{page}", key=first_key + n, lane=host) for n, host in enumerate(hosts)]
        )
    ask = functools.partial(frontier.lease, [name], lanes, worker="w", seconds=60.0, horizon=0.0)
    first = (await ask()).leases
    assert sorted(lease.task.key for lease in first) == [1000 + number for number in range(lanes)]
    assert (await ask()).leases == []
    statements: list[str] = []
    frontier._db.set_trace_callback(statements.append)
    second = (await ask(landed=first)).leases
    frontier._db.set_trace_callback(None)
    assert sorted(lease.task.key for lease in second) == [2000 + number for number in range(lanes)]
    assert {lane.in_flight for lane in await frontier.lanes(name, limit=lanes)} == {1}
    report = await frontier.settle([Done(lease=lease) for lease in first + second])
    assert report.stale == []
    assert await frontier.lanes(name) == []
    assert (await ask()).finished == (name,)
    return statements


async def test_a_lease_call_over_many_lanes_takes_no_more_statements_than_over_one(tmp_path: Path) -> None:
    frontier = await SqliteFrontier.open(tmp_path / "shoal.db", clock=FakeClock())
    one, many = [len(await call_over(frontier, lanes=lanes)) for lanes in (1, 100)]
    assert one == many
    # More lanes than one statement names.
    assert len(await call_over(frontier, lanes=300)) > many
    await frontier.close()


async def test_a_finished_url_leaves_nothing_but_its_key(tmp_path: Path) -> None:
    frontier = await SqliteFrontier.open(tmp_path / "shoal.db")
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0))
    await frontier.put(CRAWL, [Task(url="https://a.test/", key=2**62 + 1, lane="a.test")])
    batch = await frontier.lease([CRAWL], 1, worker="w", seconds=60.0, horizon=0.0)
    await frontier.settle([Done(lease=lease) for lease in batch.leases])
    await frontier.close()
    connection = sqlite3.connect(tmp_path / "shoal.db")
    assert connection.execute("SELECT * FROM seen").fetchall() == [(1, 2**62 + 1)]
    assert connection.execute("SELECT * FROM task").fetchall() == []
    connection.close()


async def test_a_large_crawl_lets_in_new_tasks_once_and_in_their_order(tmp_path: Path) -> None:
    frontier = await SqliteFrontier.open(tmp_path / "shoal.db")
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0))
    with contextlib.closing(sqlite3.connect(tmp_path / "shoal.db")) as connection:
        connection.execute("UPDATE crawl SET done = ?", (sqlite_put.SORTED_FROM,))
        connection.commit()
    keys = [5, -(2**63), 2**63 - 1, 5, -7, 0, -7]
    first = await frontier.put(CRAWL, [Task(url=f"https://a.test/{key}", key=key, lane="a.test") for key in keys])
    again = await frontier.put(CRAWL, [Task(url=f"https://a.test/{key}", key=key, lane="a.test") for key in (9, 0, 5)])
    batch = await frontier.lease([CRAWL], 10, worker="w", seconds=60.0, horizon=0.0)
    await frontier.close()
    assert (first.new, first.duplicates) == (5, 2)
    assert (again.new, again.duplicates) == (1, 2)
    assert [lease.task.key for lease in batch.leases] == [5, -(2**63), 2**63 - 1, -7, 0, 9]


async def test_opens_by_scheme_or_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("one.db", "sqlite:///two.db", f"sqlite:///{tmp_path}/three.db"):
        frontier = await open_frontier(url)
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s"))
        await frontier.close()
    assert {name for name in os.listdir(tmp_path) if name.endswith(".db")} == {"one.db", "two.db", "three.db"}


@pytest.mark.parametrize("url", ["mongo://host/x", "sqlite://", "sqlite:///", "sqlite://host"])
async def test_refuses_a_url_it_has_no_frontier_for(url: str) -> None:
    with pytest.raises(UsageError, match="sqlite://"):
        await open_frontier(url)


async def test_says_that_it_is_closed(tmp_path: Path) -> None:
    frontier = await SqliteFrontier.open(tmp_path / "shoal.db")
    await frontier.close()
    await frontier.close()
    with pytest.raises(StorageError, match="is closed"):
        await frontier.progress(CRAWL)


def work_through(path: Path, name: str) -> None:
    """A worker process: lease and settle until the crawl is finished."""

    async def work() -> None:
        frontier = await SqliteFrontier.open(path)
        while True:
            batch = await frontier.lease([CRAWL], 16, worker=name, seconds=60.0, horizon=0.0)
            if batch.finished:
                break
            results = []
            for lease in batch.leases:
                children = [lease.task.key * 3 + child for child in (1, 2, 3)]
                found = [Task(url=str(key), key=key, lane=f"{key % 5}.test") for key in children if key < 2000]
                results.append(Done(lease=lease, found=found))
            assert (await frontier.settle(results)).stale == []
            if not batch.leases:
                await asyncio.sleep(batch.ask_again)
        await frontier.close()

    asyncio.run(work())


async def test_several_processes_finish_a_crawl_together(tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    frontier = await SqliteFrontier.open(path)
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=1000))
    await frontier.put(CRAWL, [Task(url="0", key=0, lane="0.test")])
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work_through, args=(path, f"w{number}")) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        await asyncio.to_thread(process.join, 60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    progress = await frontier.progress(CRAWL)
    assert (progress.done, progress.known, progress.stale, progress.lost) == (2000, 2000, 0, 0)
    await frontier.close()


async def test_keys_that_expired_are_removed_a_few_with_every_call(tmp_path: Path) -> None:
    clock = FakeClock()
    frontier = await SqliteFrontier.open(tmp_path / "shoal.db", clock=clock)
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=5000, dedup_ttl=100.0))
    await frontier.put(CRAWL, [Task(url=str(key), key=key, lane="a.test") for key in range(1200)])
    batch = await frontier.lease([CRAWL], 1200, worker="w", seconds=60.0, horizon=0.0)
    await frontier.settle([Done(lease=lease) for lease in batch.leases])
    clock.advance(150.0)
    left = []
    with contextlib.closing(sqlite3.connect(tmp_path / "shoal.db")) as db:
        for _ in range(4):
            left.append(db.execute("SELECT count(*) FROM past").fetchone()[0])
            await frontier.lease([CRAWL], 1, worker="w", seconds=60.0, horizon=0.0)
    assert left == [1200, 700, 200, 0]
    await frontier.close()


async def test_a_call_looks_at_a_bounded_number_of_parked_exits(tmp_path: Path) -> None:
    names = tuple(f"exit-{number:04}" for number in range(700))
    pool = Pool(name="p", exits=names, interval=0.0, quarantine=1000.0)
    frontier = await SqliteFrontier.open(tmp_path / "shoal.db", clock=FakeClock())
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", cap=1000, pools=(pool,)))
    lanes = [f"{number}.test via p" for number in range(4)]
    tasks = [Task(url="https://a.test/", key=number, lane=lanes[number // 700]) for number in range(2101)]
    await frontier.put(CRAWL, tasks[:2100])
    leases = (await frontier.lease([CRAWL], 2100, worker="w", seconds=60.0, horizon=0.0)).leases
    failed = [lease for lease in leases if lease.exit != names[-1]]
    use = ExitUse(verdict="failed")
    await frontier.settle([Retry(lease=lease, reason="x", delay=99.0, exit=use) for lease in failed])
    await frontier.put(CRAWL, tasks[2100:])
    put_off = []
    with contextlib.closing(sqlite3.connect(tmp_path / "shoal.db")) as connection:
        for _ in range(2):
            batch = await frontier.lease([CRAWL], 1, worker="w", seconds=60.0, horizon=0.0)
            select = "SELECT count(*) FROM lane_rest JOIN lane ON lane.id = lane WHERE name = ?"
            put_off += connection.execute(select, (lanes[-1],)).fetchone()
    assert put_off == [MAX_PUT_OFF, 696]  # the fourth lane begins with the fourth exit: 700 less three and the last
    assert [lease.exit for lease in batch.leases] == [names[-1]]
    await frontier.close()


async def lease_statements(path: Path, *, others: int, host: str) -> list[str]:
    """What a lease call of a crawl does, beside so many crawls that had a task of this host."""
    frontier = await SqliteFrontier.open(path, clock=FakeClock())
    for number in range(others + 1):
        name = f"crawl-{number}"
        await frontier.open_crawl(Crawl(id=name, spider="s", interval=0.0, cap=1000))
        lane = "a.test" if number == others else host
        await frontier.put(name, [Task(url=f"https://{lane}/{key}", key=key, lane=lane) for key in range(9)])
        ask = functools.partial(frontier.lease, [name], 1, worker="w", seconds=60.0, horizon=0.0)
        assert (await ask()).leases
    statements: list[str] = []
    frontier._db.set_trace_callback(statements.append)
    assert (await ask()).leases
    frontier._db.set_trace_callback(None)
    await frontier.close()
    return statements


async def test_a_crawl_that_is_alone_on_its_hosts_looks_at_no_other_lane(tmp_path: Path) -> None:
    alone = await lease_statements(tmp_path / "1.db", others=0, host="")
    assert len(await lease_statements(tmp_path / "2.db", others=100, host="b.test")) == len(alone)
    # So it can be seen here.
    assert len(await lease_statements(tmp_path / "3.db", others=1, host="a.test")) > len(alone)
