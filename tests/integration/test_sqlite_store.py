"""The embedded store: statements that run too long, retention in steps."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback
from pathlib import Path

import pytest

from shoal.errors import StorageError, UsageError
from shoal.store.base import ItemRule
from shoal.store.sqlite import read
from shoal.store.sqlite import store as sqlite_module
from shoal.store.sqlite.store import SqliteStore
from shoal.testing.contract.store.rows import content, fetch, item, only
from shoal.testing.waiting import eventually

FOREVER = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


def is_asked() -> bool:
    """Whether a thread of this process runs a statement of a user."""
    frames = list(sys._current_frames().values())
    return any(frame.f_code is read.answer.__code__ for top in frames for frame, _ in traceback.walk_stack(top))


async def test_a_statement_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "shoal.db")
    with pytest.raises(StorageError, match=r"took longer than 0\.2 s"):
        await store.query(FOREVER, limit=1, seconds=0.2)
    assert (await store.query("SELECT count(*) FROM items", limit=1)).rows == [(0,)]
    await store.close()


async def test_writers_do_not_wait_for_a_statement_and_a_cancelled_one_is_interrupted(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "shoal.db")
    asking = asyncio.create_task(store.query(FOREVER, limit=1, seconds=600))
    await eventually(is_asked)
    await store.write([item()], [])
    assert not asking.done()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asking, 30)  # ends with the thread that ran the statement
    assert not is_asked()
    await store.close()


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH DATABASE '{folder}/other.db' AS other",
        "PRAGMA user_version = 5",
        "PRAGMA journal_mode = DELETE",
        "VACUUM INTO '{folder}/copy.db'",
        "INSERT INTO item_version VALUES (1, 's', 'k', 1, 'c', 'u', '{{}}', 0.0)",
        "REPLACE INTO item (id) VALUES (1)",
        "CREATE TEMP TABLE mine (a)",
        "SELECT load_extension('x')",
        "SELECT writefile('{folder}/out', 'x')",
        "SELECT length(randomblob(100000000))",
        "BEGIN",
    ],
)
async def test_no_statement_can_change_anything(sql: str, tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "shoal.db")
    with pytest.raises(UsageError, match=r"only statements that read are allowed|the statement is not usable"):
        await store.query(sql.format(folder=tmp_path), limit=1)
    assert set(os.listdir(tmp_path)) <= {"shoal.db", "shoal.db-wal", "shoal.db-shm"}
    await store.close()


async def test_a_file_with_a_special_name_can_be_asked_too(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "50% off?#1.db")
    await store.write([item()], [])
    assert (await store.query("SELECT key FROM items", limit=1)).rows == [("k",)]
    await store.close()


async def test_old_log_lines_go_in_steps_that_let_others_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_module, "ROWS_PER_STEP", 100)
    store = await SqliteStore.open(tmp_path / "shoal.db")
    now = time.time()
    lines = [fetch(number, at=now - 1000 if number % 2 else now) for number in range(1050)]
    await store.write([], lines)
    tidying = asyncio.create_task(store.tidy(retention=500))
    await asyncio.wait_for(store.write([item()], [fetch(2000, at=now)]), 60)
    assert not tidying.done()
    assert await tidying == 525
    assert len(await store.fetches("c1", range(3000))) == 526
    await store.close()


async def test_large_items_are_filled_like_small_ones(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "shoal.db")
    rule = ItemRule(merge="fill")
    await store.write([item(data={"text": "x" * 100_000, "a": 1})], [], rule=rule)
    await store.write([item(data={"a": 2}, token=2)], [], rule=rule)
    stored = content(await only(store))
    assert (len(stored["text"]), stored["a"]) == (100_000, 2)
    await store.close()


async def test_times_are_kept_to_the_last_digit_by_a_fold(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "shoal.db")
    first, last = 1794739212.3456784, 1794739299.9876587
    rule = ItemRule(merge="fill", keep_versions=True)
    await store.write([item(at=first, data={"a": 1})], [], rule=rule)
    await store.write([item(at=last, data={"a": 1}, token=2)], [], rule=rule)
    for token, at in ((3, last - 50.0), (1, first), (4, last - 1.0)):
        await store.write([item(at=at, data={"a": 1}, token=token)], [], rule=rule)
    stored = await only(store)
    assert (stored.first_seen, stored.last_seen, stored.changed_at) == (first, last, first)
    await store.close()
