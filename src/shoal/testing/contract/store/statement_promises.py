"""What every store with SQL promises about statements: they read, and do nothing else."""

from __future__ import annotations

import pytest

from shoal.errors import UsageError
from shoal.store.base import Store
from shoal.testing.contract.store.rows import Reopen, fetch, item


class StatementPromises:
    """Names that people query, limits, refusals."""

    async def test_answers_a_statement_that_reads(self, store: Store) -> None:
        await store.write([item("a", data={"t": "x"}), item("b", data={"t": "y"})], [fetch(7, status=200)])
        answer = await store.query("SELECT key, version, url FROM items ORDER BY key", limit=10)
        assert answer.columns == ("key", "version", "url")
        assert answer.rows == [("a", 1, "https://a.test/a"), ("b", 1, "https://a.test/b")]
        assert not answer.has_more
        answer = await store.query("select host, status, outcome from fetches;", limit=10)
        assert answer.rows == [("a.test", 200, "ok")]
        answer = await store.query("-- by field\nSELECT key FROM items WHERE data ->> 't' = 'y'", limit=10)
        assert answer.rows == [("b",)]

    async def test_the_tables_that_people_query_have_the_same_columns_everywhere(self, store: Store) -> None:
        await store.write([item()], [fetch()])
        columns = "spider, key, crawl, url, data, first_seen, last_seen, changed_at, version, gone_at"
        for table in ("items", "items_changed"):
            answer = await store.query(f"SELECT {columns} FROM {table}", limit=1)
            assert ", ".join(answer.columns) == columns
        columns = (
            "crawl, key, url, host, final_url, status, outcome, attempt, worker, exit, size, content_hash, elapsed, at,"
            " error, etag, last_modified"
        )
        answer = await store.query(f"SELECT {columns} FROM fetches", limit=1)
        assert ", ".join(answer.columns) == columns

    async def test_the_view_of_changed_items_leaves_out_what_never_changed(self, store: Store) -> None:
        await store.write([item("same"), item("other")], [])
        await store.write([item("same", token=2), item("other", token=2, data={"title": "B"})], [])
        answer = await store.query("SELECT key, version FROM items_changed", limit=10)
        assert answer.rows == [("other", 2)]

    async def test_gives_as_many_rows_as_asked_for_and_says_that_there_are_more(self, store: Store) -> None:
        await store.write([item(str(number)) for number in range(30)], [])
        answer = await store.query("SELECT key FROM items", limit=10)
        assert (len(answer.rows), answer.has_more) == (10, True)
        answer = await store.query("SELECT key FROM items", limit=30)
        assert (len(answer.rows), answer.has_more) == (30, False)

    @pytest.mark.parametrize(
        "sql",
        [
            "DELETE FROM items",
            "DELETE FROM items RETURNING key",
            "DROP VIEW items_changed",
            "CREATE TABLE mine (a INTEGER)",
            "SELECT 1; SELECT 2",
            "SELECT 1; DROP VIEW items_changed",
            "WITH gone AS (SELECT 1) DELETE FROM items",
            "COMMIT",
            "SELEC 1",
            "SELECT nothing_like_it FROM items",
            "SELECT '\0'",
            "SELECT '\ud83d'",
        ],
    )
    async def test_refuses_a_statement_that_does_not_just_read(self, store: Store, sql: str) -> None:
        await store.write([item()], [])
        with pytest.raises(UsageError, match=r"only statements that read|is not usable|gives no rows") as refusal:
            await store.query(sql, limit=10)
        assert "\n" not in str(refusal.value)
        assert await store.count_items() == 1
        assert (await store.query("SELECT key FROM items", limit=10)).rows == [("k",)]
        # A store may refuse a statement because it gives no rows: then it must not have run.
        assert (await store.query("SELECT key FROM items_changed", limit=10)).rows == []
        with pytest.raises(UsageError, match="mine"):
            await store.query("SELECT a FROM mine", limit=10)

    @pytest.mark.parametrize("sql", ["-- nothing", ""])
    async def test_refuses_a_statement_that_says_nothing(self, store: Store, sql: str) -> None:
        with pytest.raises(UsageError, match="gives no rows: write a SELECT"):
            await store.query(sql, limit=10)

    async def test_a_statement_sees_what_was_just_written(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        for number in range(3):
            await other.write([item(str(number))], [])
            answer = await store.query("SELECT count(*) FROM items", limit=1)
            assert answer.rows == [(number + 1,)]
