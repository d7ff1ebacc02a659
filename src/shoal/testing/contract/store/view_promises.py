"""Store promises about SQL: views and tables of items, and statements of users."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from shoal.errors import UsageError
from shoal.store.base import ItemRule, Store
from shoal.store.item_views import ItemView, Kind, named_columns
from shoal.testing.contract.store.rows import Reopen, fetch, item

# Values, and the result in each kind of column. Compared as text: stores have different types.
FITS: dict[Kind, list[tuple[Any, Any]]] = {
    "text": [("a'b\"c\\ é🐟", "a'b\"c\\ é🐟"), ("", "")],
    "mixed": [("a", "a"), (1, "1"), (2**80, str(2**80)), (True, "true")],
    "integer": [(3, 3), (-(2**63), -(2**63)), (2**63 - 1, 2**63 - 1), (4.0, 4)],
    "number": [(1, 1.0), (-2.5, -2.5), (1e300, 1e300), (0, 0.0)],
    "boolean": [(True, 1), (False, 0)],
    "decimal": [("12.50", 12.5), (3, 3), ("-0.25", -0.25), ("+7", 7), ("1E-7", 1e-7)],
    "date": [("2026-02-28", "2026-02-28"), ("2024-02-29", "2024-02-29")],
    "time": [
        ("2026-05-01T10:00:00Z", "2026-05-01 10:00:00"),
        ("2026-05-01T10:00:00.25+02:00", "2026-05-01 08:00:00"),
        ("2026-05-01 10:00:00,999999999-0530", "2026-05-01 15:30:00"),
        ("9999-12-31T23:59:59.9999999Z", "9999-12-31 23:59:59"),
        ("2026-05-01T10:00:00", "2026-05-01 10:00:00"),
        ("2026-05-01", "2026-05-01 00:00:00"),
    ],
}
MISFITS: dict[Kind, list[Any]] = {
    "text": [1, True, [], {"a": 1}],
    "integer": [2**63, -(2**63) - 1, 1.5, "1", True, 1e300, []],
    "number": ["1", True, {}, 10**400],
    "boolean": [0, 1, "true"],
    "decimal": ["", "1e500", "e5", "12,50", "1.2.3", "--1", "+", ".", "NaN", "9" * 2000, True],
    "date": ["2026-02-29", "2026-13-01", "0000-01-01", "2026-5-1", "20260501", 1, "2026-05-01T10:00:00Z", "now"],
    "time": [
        "now", "2026-02-31T00:00:00Z", "2026-05-01T24:00:00Z", "2026-05-01T25:00:00Z", "0001-01-01T00:00:00+01:00",
        "10:00", "2461162.5", "2026-05-01 bad", 7, "",
    ],
}  # fmt: skip
HOSTILE = [
    'a"b', "a'b", "a\\b", "a b", "select", "Title", "title", "é", "🐟", "$", "a.b", "a[0]", "_key", "_misfit", "x" * 80,
    "a\nb", '"; DROP TABLE items; --', "", "$$", "%s", "{t}", "found", "new", "data",
]  # fmt: skip


def view_of(*fields: tuple[str, Kind], name: str = "books_view", is_table: bool = False, **more: Any) -> ItemView:
    return ItemView(name=name, spider="books", columns=named_columns(fields, **more), is_table=is_table)


async def rows(store: Store, columns: str, *, name: str = "books_view") -> list[tuple[Any, ...]]:
    """Rows of a view, ordered by key."""
    answer = await store.query(f'SELECT {columns} FROM "{name}" ORDER BY "_key"', limit=10_000)
    return answer.rows


async def filled(store: Store, view: ItemView) -> int:
    """Make a view and fill it; returns how many items were copied."""
    await store.views.make(view)
    return sum([number async for number in store.views.fill(view.name)]) if view.is_table else 0


class ViewPromises:
    """Views and tables of items. `is_table`: promises of both."""

    @pytest.fixture(params=[False, True], ids=["view", "table"])
    def is_table(self, request: pytest.FixtureRequest) -> bool:
        return bool(request.param)

    @pytest.mark.parametrize("kind", FITS)
    async def test_a_column_has_the_values_that_fit_its_type(self, store: Store, kind: Kind, is_table: bool) -> None:
        values = FITS[kind]
        await store.write([item(f"{n:02}", data={"f": value}) for n, (value, _) in enumerate(values)], [])
        await filled(store, view_of(("f", kind), is_table=is_table))
        found = [row[0] for row in await rows(store, '"f"')]
        assert [_compared(value, kind) for value in found] == [expected for _, expected in values]
        assert [row[0] for row in await rows(store, '"_misfit"')] == [None] * len(values)

    @pytest.mark.parametrize("kind", MISFITS)
    async def test_a_value_that_does_not_fit_is_null_named_and_counted(
        self, store: Store, kind: Kind, is_table: bool
    ) -> None:
        bad = MISFITS[kind]
        data = [*({"f": value, "other": "a"} for value in bad), {"f": None}, {}]
        await store.write([item(f"{n:02}", data=fields) for n, fields in enumerate(data)], [])
        await filled(store, view_of(("other", "text"), ("f", kind), is_table=is_table))
        assert [row[0] for row in await rows(store, '"f"')] == [None] * len(data)
        named = [row[0] for row in await rows(store, '"_misfit"')]
        assert named == [*['["f"]'] * len(bad), None, None]
        count = await store.views.count("books_view")
        assert (count.rows, count.misfits, count.by_column) == (len(data), len(bad), {"f": len(bad)})

    async def test_fields_may_have_any_name(self, store: Store, is_table: bool) -> None:
        await store.write([item("k", data={name: f"of {name}" for name in HOSTILE})], [])
        view = view_of(*((name, "text") for name in HOSTILE), is_table=is_table)
        await filled(store, view)
        columns = ", ".join('"' + column.name.replace('"', '""') + '"' for column in view.columns)
        assert await rows(store, columns) == [tuple(f"of {name}" for name in HOSTILE)]
        assert [column.name.casefold() for column in view.columns].count("title") == 1
        await store.write([item("k", data=dict.fromkeys(HOSTILE, 1), token=2)], [])
        ((named,),) = await rows(store, '"_misfit"')
        assert json.loads(named) == [column.name for column in view.columns]

    async def test_it_shows_the_items_of_its_spider_as_they_are_now(self, store: Store, is_table: bool) -> None:
        await store.write([item("a", data={"n": 1}), item("b", data={"n": 2}), item("a", spider="toys")], [])
        await filled(store, view_of(("n", "integer"), is_table=is_table))
        assert await rows(store, '"_key", "n", "_version"') == [("a", 1, 1), ("b", 2, 1)]
        await store.write([item("a", data={"n": 5}, token=3, at=200.0), item("c", data={"n": 3})], [])
        await store.write([item("a", data={"n": 4}, token=2, at=150.0), item("c", spider="toys")], [])
        assert await rows(store, '"_key", "n", "_version"') == [("a", 5, 2), ("b", 2, 1), ("c", 3, 1)]
        await store.mark_gone("books", at=300.0, unseen_since=150.0)
        assert await rows(store, '"_key", "_gone_at" IS NULL') == [("a", 1), ("b", 0), ("c", 0)]
        await store.write([item("b", data={"n": 2}, token=9, at=400.0)], [])
        assert await rows(store, '"_key", "_gone_at" IS NULL') == [("a", 1), ("b", 1), ("c", 0)]

    async def test_a_spider_and_a_view_may_have_any_name(self, store: Store, is_table: bool) -> None:
        spider = 'it\'s "books" \\ $$ 🐟'
        await store.write([item("a", spider=spider, data={"n": 1})], [])
        view = ItemView(
            name=spider, spider=spider, columns=named_columns([("n", "integer")], indexed=["n"] * is_table),
            is_table=is_table,
        )  # fmt: skip
        await filled(store, view)
        await store.write([item("b", spider=spider, data={"n": 2})], [])
        assert (await store.views.count(spider)).rows == 2
        assert await store.views.drop(spider)
        assert await store.views.all() == []
        await store.write([item("c", spider=spider, data={"n": 3})], [])

    async def test_a_field_more_is_a_column_more(self, store: Store, is_table: bool) -> None:
        await store.write([item("a", data={"n": 1, "title": "A"})], [])
        await filled(store, view_of(("n", "integer"), is_table=is_table))
        assert await filled(store, view_of(("title", "text"), ("n", "integer"), is_table=is_table)) == int(is_table)
        assert await rows(store, '"n", "title"') == [(1, "A")]
        (known,) = await store.views.all()
        assert [column.name for column in known.columns] == ["n", "title"]
        assert known.filled

    async def test_a_column_may_get_another_type_and_go(self, store: Store, is_table: bool) -> None:
        await store.write([item("a", data={"n": "1", "title": "A"})], [])
        await filled(store, view_of(("n", "integer"), ("title", "text"), is_table=is_table))
        assert await rows(store, '"n", "_misfit"') == [(None, '["n"]')]
        await filled(store, view_of(("n", "text"), is_table=is_table))
        assert await rows(store, '"n", "_misfit"') == [("1", None)]
        with pytest.raises(UsageError):
            await rows(store, "title")

    async def test_making_it_again_changes_nothing(self, store: Store, reopen: Reopen, is_table: bool) -> None:
        await store.write([item("a", data={"n": 1})], [])
        view = view_of(("n", "integer"), is_table=is_table)
        assert await filled(store, view) == int(is_table)
        other = await reopen()
        assert await filled(other, view) == 0
        assert await rows(other, '"n"') == [(1,)]

    async def test_a_name_that_the_store_has_is_refused(self, store: Store, is_table: bool) -> None:
        for name in ("items", "fetches", "item_versions"):
            with pytest.raises(UsageError, match="something else that is named"):
                await store.views.make(view_of(("n", "integer"), name=name, is_table=is_table))
        for name in ("", "fetches_20260105", "pg_x", "sqlite_x", "x" * 64, "a\nb"):
            with pytest.raises(UsageError, match="cannot be the name of a view"):
                await store.views.make(view_of(("n", "integer"), name=name, is_table=is_table))
        assert await store.views.all() == []

    async def test_another_spiders_view_or_another_kind_is_not_replaced(self, store: Store, is_table: bool) -> None:
        view = view_of(("n", "integer"), is_table=is_table)
        await store.views.make(view)
        with pytest.raises(UsageError, match="is of the spider books"):
            await store.views.make(ItemView(name="books_view", spider="toys", columns=view.columns, is_table=is_table))
        with pytest.raises(UsageError, match=r"is a (table|view) already: drop it first"):
            await store.views.make(view_of(("n", "integer"), is_table=not is_table))
        assert await store.views.drop("books_view")
        assert not await store.views.drop("books_view")

    async def test_a_table_that_was_filled_half_way_is_filled_to_the_end(self, store: Store, reopen: Reopen) -> None:
        number = 4500
        await store.write([item(f"{n:05}", data={"n": n}) for n in range(number)], [])
        view = view_of(("n", "integer"), is_table=True)
        await store.views.make(view)
        steps = store.views.fill("books_view")
        first = await anext(steps)
        assert 0 < first < number
        await steps.aclose()  # type: ignore[attr-defined]
        (known,) = await store.views.all()
        assert not known.filled
        # Changes during the fill are newer than its copies.
        last = f"{number - 1:05}"
        await store.write([item(last, data={"n": -1}, token=2), item("new", data={"n": -2})], [])
        other = await reopen()
        brought = sum([some async for some in other.views.fill("books_view")])
        assert first + brought in (number, number + 1)
        count = await other.views.count("books_view")
        assert (count.rows, count.misfits) == (number + 1, 0)
        answer = await other.query('SELECT "n" FROM books_view WHERE "_key" >= ' + f"'{last}'", limit=9)
        assert sorted(answer.rows) == [(-2,), (-1,)]

    async def test_an_indexed_column_keeps_no_item_out(self, store: Store) -> None:
        fields: list[tuple[str, Kind]] = [("text", "text"), ("n", "number"), ("price", "decimal"), ("day", "date")]
        view = view_of(*fields, is_table=True, indexed=[name for name, _ in fields])
        await store.views.make(view)
        long = "".join(chr(0x4E00 + n) for n in range(20_000))
        row = item("k", data={"text": long, "n": 1.5, "price": "9" * 999, "day": "2026-05-01"})
        assert await store.write([row], []) == {}
        assert await rows(store, '"n"') == [(1.5,)]
        await store.views.make(view_of(*fields, is_table=True, indexed=["n"]))
        assert await store.write([item("l", data={"text": "a"})], []) == {}
        with pytest.raises(UsageError, match="lists or objects, which cannot be indexed"):
            await store.views.make(view_of(("f", "json"), name="other", is_table=True, indexed=["f"]))
        with pytest.raises(UsageError, match="an index needs a table"):
            await store.views.make(view_of(("f", "text"), name="other", indexed=["f"]))

    async def test_a_table_follows_every_rule_of_writing(self, store: Store) -> None:
        await store.views.make(view_of(("a", "integer"), ("b", "integer"), is_table=True))
        fill = ItemRule(merge="fill", keep_versions=True)
        await store.write([item("k", data={"a": 1})], [], rule=fill)
        await store.write([item("k", data={"b": 2}, token=2)], [], rule=fill)
        await store.write([item("k", data={"a": 9, "b": 3}, token=1)], [], rule=fill)
        assert await rows(store, '"a", "b"') == [(1, 2)]
        fresh = ItemRule(freshness=100.0)
        await store.write([item("k", data={"a": 7}, token=3, at=120.0)], [], rule=fresh)
        assert await rows(store, '"a"') == [(1,)]

    async def test_many_columns_of_long_values_fit(self, store: Store) -> None:
        names = [f"field {n}" for n in range(300)]
        await store.views.make(view_of(*((name, "text") for name in names), is_table=True))
        # Too long for a row of a database, and incompressible.
        data = {name: hashlib.shake_128(name.encode()).hexdigest(1300) for name in names}
        assert await store.write([item("k", data=data)], []) == {}
        assert await rows(store, '"_misfit"') == [(None,)]
        with pytest.raises(UsageError, match="301 columns are more than the 300"):
            await store.views.make(view_of(*((f"f{n}", "text") for n in range(301)), name="wide"))

    async def test_lists_and_objects_are_json(self, store: Store) -> None:
        await store.views.make(view_of(("f", "json"), ("g'", "json"), is_table=True))
        for number, value in enumerate([[1, "a"], {"x": None}, "text", 5, True, None]):
            await store.write([item(f"{number}", data={"f": value, "g'": value})], [])
        found = [
            tuple(None if cell is None else json.loads(cell) for cell in row) for row in await rows(store, '"f", "g\'"')
        ]
        assert found == [([1, "a"],) * 2, ({"x": None},) * 2, ("text",) * 2, (5, 5), (True, True), (None, None)]


def _compared(value: Any, kind: Kind) -> Any:
    if kind == "time":
        # 2026-05-01T08:00:00.250Z, or a datetime
        return str(value).replace("T", " ")[:19]
    if kind == "date":
        return str(value)
    return float(value) if kind == "decimal" else value


class StatementPromises:
    """Names for queries, limits, refusals."""

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
        with pytest.raises(UsageError, match=r"only statements that read|is not usable|returns no rows") as refusal:
            await store.query(sql, limit=10)
        assert "\n" not in str(refusal.value)
        assert await store.count_items() == 1
        assert (await store.query("SELECT key FROM items", limit=10)).rows == [("k",)]
        # A store may refuse a statement without rows: then it must not have run.
        assert (await store.query("SELECT key FROM items_changed", limit=10)).rows == []
        with pytest.raises(UsageError, match="mine"):
            await store.query("SELECT a FROM mine", limit=10)

    @pytest.mark.parametrize("sql", ["-- nothing", ""])
    async def test_refuses_a_statement_that_says_nothing(self, store: Store, sql: str) -> None:
        with pytest.raises(UsageError, match="returns no rows: write a SELECT"):
            await store.query(sql, limit=10)

    async def test_a_statement_sees_what_was_just_written(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        for number in range(3):
            await other.write([item(str(number))], [])
            answer = await store.query("SELECT count(*) FROM items", limit=1)
            assert answer.rows == [(number + 1,)]
