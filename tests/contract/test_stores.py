"""Every store keeps the promises of the contract; what only one backend can show follows it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import StorageError, UsageError
from shoal.store import open_store
from shoal.store.base import ItemFilter, Store
from shoal.store.files.store import FilesStore
from shoal.store.sqlite.read import items_query, versions_query
from shoal.store.sqlite.store import SqliteStore
from shoal.testing.contract.store.view_promises import ViewPromises
from shoal.testing.contract.store.week_promises import WeekPromises
from shoal.testing.store_contract import Reopen, StoreContract, everything, fetch, files_no_larger_than, item, reopening


class TestSqliteStore(StoreContract, ViewPromises, WeekPromises):
    @pytest.fixture
    async def reopen(self, tmp_path: Path) -> AsyncIterator[Reopen]:
        async with reopening(lambda: SqliteStore.open(tmp_path / "shoal.db")) as reopen:
            yield reopen

    async def test_a_full_disk_loses_nothing_and_the_same_write_succeeds_later(
        self, store: Store, reopen: Reopen, tmp_path: Path
    ) -> None:
        await store.write([item("kept")], [fetch(1)])
        rows = [item(str(number), data={"text": "x" * 2000}) for number in range(400)]
        with files_no_larger_than(200_000), pytest.raises(StorageError, match=r"shoal\.db"):
            await store.write(rows, [fetch(2)])
        assert [stored.key for stored in await everything(store)] == ["kept"]
        assert await store.fetches("c1", [1, 2]) == [fetch(1)]
        await store.write(rows, [fetch(2)])
        assert await store.count_items() == 401
        await store.close()
        assert await (await reopen()).count_items() == 401

    async def test_people_can_read_items_with_sql(self, store: Store, tmp_path: Path) -> None:
        await store.write([item("k", data='{"title":"Émile 🐟","price":2}'.encode())], [])
        await store.close()
        with sqlite3.connect(tmp_path / "shoal.db") as connection:
            row = connection.execute("SELECT typeof(data), data ->> 'title', data ->> 'price' FROM item").fetchone()
        connection.close()
        assert row == ("text", "Émile 🐟", 2)

    async def test_pages_through_items_without_sorting_them(self, store: Store, tmp_path: Path) -> None:
        connection = sqlite3.connect(tmp_path / "shoal.db")
        filters: list[dict[str, Any]] = [
            {},
            {"spider": "books"},
            {"crawl": "c1"},
            {"spider": "books", "crawl": "c1"},
            {"since": 1.0, "changed_since": 1.0, "url_prefix": "https://"},
        ]
        for which in filters:
            for query, arguments in (items_query(ItemFilter(**which)), versions_query(ItemFilter(**which))):
                plan = connection.execute(f"EXPLAIN QUERY PLAN {query}", (*arguments, 0)).fetchall()
                assert not [step for *_, step in plan if "TEMP B-TREE" in step]
        connection.close()


class TestFilesStore(StoreContract):
    @pytest.fixture
    async def reopen(self, tmp_path: Path) -> AsyncIterator[Reopen]:
        async with reopening(lambda: FilesStore.open(tmp_path / "out", open_index=SqliteStore.open)) as reopen:
            yield reopen


@pytest.mark.parametrize("prefix", ["", "sqlite:///"])
async def test_opens_a_store_by_path_or_url(prefix: str, tmp_path: Path) -> None:
    store = await open_store(f"{prefix}{tmp_path}/results.db")
    await store.write([item()], [])
    await store.close()
    assert (tmp_path / "results.db").exists()


async def test_three_slashes_are_a_path_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    await (await open_store("sqlite:///here.db")).close()
    assert (tmp_path / "here.db").exists()


@pytest.mark.parametrize(
    "url",
    [
        *("", "results", "results.csv", "sqlite://", "sqlite:///", "mongodb://h/x.db", "sqlite://x.db"),
        *("files:", "files://", "files://x", "files:///", "postgresql:x"),
    ],
)
async def test_an_unknown_store_is_refused_with_what_would_do(url: str) -> None:
    with pytest.raises(UsageError, match=r"unknown store .*: give a path that ends in \.db, sqlite:///PATH, files:DIR"):
        await open_store(url)


async def test_a_folder_that_does_not_exist_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be opened"):
        await open_store(str(tmp_path / "nowhere" / "shoal.db"))
