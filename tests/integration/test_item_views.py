"""Views and tables of items as people make them, beside crawls that write, and with the grants of a database."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
from uuid import uuid4

import pytest
from command_line import Folder

from docs_pages import ROOT
from shoal.store import open_store
from shoal.store.item_views import ItemView, named_columns
from shoal.testing.contract.store.rows import item
from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import eventually, wait_until

PRODUCTS = 6
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
PAGE = ROOT / "docs" / "how-to" / "item-views.md"
BOOK = "from dataclasses import dataclass\n@dataclass\nclass Book:\n    title: str\n    price: float\n"
FILM = "@dataclass\nclass Film:\n    title: str\n    minutes: int\n"


def answered(folder: Folder, statement: str, *options: str) -> list[dict[str, object]]:
    lines = folder.run("sql", statement, "--json", *options).stdout.splitlines()
    return [json.loads(line) for line in lines]


def test_a_view_and_a_table_of_a_crawls_items(folder: Folder, site: SiteProcess) -> None:
    (folder.path / "items.py").write_text(BOOK + FILM)
    spider = folder.spider(site.url)
    folder.run("run", spider)
    made = folder.run("store", "view", "books")
    assert f"view books is created: {PRODUCTS} items, 2 columns\n  title text\n  price text\n" in made.stdout
    assert len(answered(folder, "SELECT title, price FROM books WHERE price LIKE '£%'")) == PRODUCTS
    wrong = folder.run("store", "view", "books", "--type", "items.py:Book", "--table", "--name", "shelf")
    assert f"{PRODUCTS} items with a value that does not fit, which is NULL here: price ({PRODUCTS})" in wrong.stdout
    assert answered(folder, "SELECT DISTINCT price, _misfit FROM shelf") == [{"price": None, "_misfit": '["price"]'}]
    again = folder.run("store", "view", "books", "--table", "--name", "shelf", "--index", "title")
    assert "table shelf has changed" in again.stdout
    assert "now: price text (was number)" in again.stdout
    assert "now: title text, indexed (was text)" in again.stdout
    same = folder.run("store", "view", "books", "--table", "--name", "shelf", "--index", "title")
    assert "shelf is unchanged" in same.stdout
    (folder.path / spider).write_text((folder.path / spider).read_text().replace("title=page", "pages=7, title=page"))
    folder.run("run", spider, "--again")
    assert len(answered(folder, "SELECT title FROM shelf WHERE price LIKE '£%'")) == PRODUCTS
    assert "new: pages integer" in folder.run("store", "view", "books").stdout
    documents = folder.json("store", "views")
    assert [(one["name"], one["table"], one["filled"]) for one in documents] == [
        ("books", False, True),
        ("shelf", True, True),
    ]
    refusal = folder.refusal("store", "view", "books", "--index", "titel", "--table")
    assert "there is no such field; did you mean 'title'?" in refusal
    assert "something else that is named SHELF" in folder.refusal("store", "view", "books", "--name", "SHELF")
    assert "to read fields from: did you mean 'books'?" in folder.refusal("store", "view", "boks")
    others = folder.run("store", "view", "books", "--type", "items.py:Film", "--name", "Films").stderr
    assert 'its name needs quotes in SQL: SELECT * FROM "Films"' in others
    assert f"none of the {PRODUCTS} items read has the fields minutes of items.py:Film" in others
    folder.run("store", "view", "books", "--drop", "--name", "Films")
    assert "did you mean 'shelf'?" in folder.refusal("store", "view", "books", "--drop", "--name", "self")
    folder.run("store", "view", "books", "--drop")
    assert [one["name"] for one in folder.json("store", "views")] == ["shelf"]


def test_a_folder_of_json_lines_says_what_to_use_instead(folder: Folder, site: SiteProcess) -> None:
    folder.run("run", folder.spider(site.url), "--store", "files:out")
    refusal = folder.refusal("store", "view", "books", "--store", "files:out")
    assert "write `shoal export --spider books -o items.parquet --store files:out`" in refusal


async def test_a_process_that_is_killed_while_it_fills_a_table_leaves_the_rest_to_the_next(folder: Folder) -> None:
    number = 30_000
    store = await open_store(str(folder.path / "shoal.db"))
    await store.write([item(f"{n:05}", data={"n": n, "text": "x" * 200}) for n in range(number)], [])
    await store.close()
    command = ("store", "view", "books", "--table")
    database = sqlite3.connect(folder.path / "shoal.db", check_same_thread=False)

    def position() -> int | None:
        try:
            (found,) = database.execute("SELECT coalesce(position, -1) FROM item_view").fetchone() or (0,)
        except sqlite3.OperationalError:
            return 0
        return int(found)

    with folder.start(*command) as process:
        await asyncio.to_thread(wait_until, lambda: position() != 0, otherwise="nothing is filled")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    database.close()
    folder.run(*command)
    assert answered(folder, "SELECT count(*) AS n, min(n) AS first, max(n) AS last FROM books") == [
        {"n": number, "first": 0, "last": number - 1}
    ]


async def test_roles_of_postgres_need_the_grants_of_the_page_and_no_more(
    folder: Folder, postgres: PostgresServer, database: str
) -> None:
    url, analyst, writer = postgres.url(database), f"analyst_{uuid4().hex[:8]}", f"writer_{uuid4().hex[:8]}"
    store = await open_store(url)
    await store.write([item("a", data={"day": "2026-05-01", "at": "2026-05-01T10:00:00Z"})], [])
    columns = named_columns([("day", "date"), ("at", "time")])
    for name, is_table in (("books", False), ("shelf", True)):
        await store.views.make(ItemView(name=name, spider="books", columns=columns, is_table=is_table))
    assert [brought async for brought in store.views.fill("shelf")] == [1]
    (grants,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    postgres.call(f"CREATE ROLE {analyst} LOGIN PASSWORD 'pw-1'", database=database)
    postgres.call(grants.replace("analyst", analyst), database=database)
    postgres.call(
        f"CREATE ROLE {writer} LOGIN PASSWORD 'pw-1'; GRANT USAGE ON SCHEMA shoal TO {writer};"
        f"GRANT SELECT, INSERT, UPDATE ON shoal.items TO {writer}; GRANT SELECT ON shoal.schema_version TO {writer}",
        database=database,
    )
    as_writer = await open_store(f"postgresql://{writer}:pw-1@{url.partition('@')[2]}")
    await as_writer.write([item("b", data={"day": "2026-05-02", "at": "2026-05-02T10:00:00Z"})], [])
    as_analyst = f"postgresql://{analyst}:pw-1@{url.partition('@')[2]}"
    for name in ("books", "shelf"):
        rows = answered(folder, f"SELECT day::text AS day FROM {name} ORDER BY _key", "--store", as_analyst)
        assert rows == [{"day": "2026-05-01"}, {"day": "2026-05-02"}]
    assert "permission denied" in folder.refusal("sql", "SELECT * FROM items", "--store", as_analyst)
    refusal = folder.refusal("store", "view", "books", "--drop", "--store", as_analyst)
    assert "permission denied for table item_views; ask for a GRANT, or run this with the role that owns" in refusal
    # What a session has for itself under the same name is not the table: the trigger has the rights of the owner.
    postgres.call(
        "CREATE TEMP TABLE shelf (LIKE shoal.shelf INCLUDING ALL);"
        "UPDATE shoal.items SET data = '{}', version = 2 WHERE key = 'b'",
        database=database,
    )
    assert postgres.call("SELECT day IS NULL FROM shoal.shelf WHERE _key = 'b'", database=database) == "t"
    assert "did you mean 'books'?" in folder.refusal("store", "view", "boks", "--store", url)
    assert "a time that Python does not know" in folder.refusal("sql", "SELECT '10000-01-01'::date", "--store", url)
    # A view that gets other columns keeps its grants.
    changed = ItemView(name="books", spider="books", columns=named_columns([("at", "text"), ("day", "date")]))
    await store.views.make(changed)
    assert len(answered(folder, "SELECT at FROM books", "--store", as_analyst)) == 2
    postgres.call("CREATE VIEW public.mine AS SELECT day FROM shoal.shelf", database=database)
    line = "something else uses this view or a column of it: view public.mine depends on column day of table"
    with pytest.raises(Exception, match=line):
        await store.views.make(
            ItemView(name="shelf", spider="books", columns=named_columns([("at", "time")]), is_table=True)
        )
    for one in (as_writer, store):
        await one.close()


async def test_a_schema_of_postgres_may_have_any_name(postgres: PostgresServer, database: str) -> None:
    store = await open_store(f"{postgres.url(database)}?schema=My%20%22shop%22")
    await store.write([item("a", data={"n": 1, "m": 2})], [])
    for is_table in (False, True):
        for names in (["n"], ["m", "n"]):
            columns = named_columns([(name, "integer") for name in names])
            await store.views.make(ItemView(name="books", spider="books", columns=columns, is_table=is_table))
        assert sum([some async for some in store.views.fill("books")]) == is_table
        assert (await store.query('SELECT "m", "n" FROM books', limit=9)).rows == [(2, 1)]
        assert await store.views.drop("books")
    await store.close()


@pytest.mark.parametrize("change", ["columns", "drop"])
async def test_writers_of_postgres_and_a_table_that_changes_wait_for_each_other_in_turn(
    postgres: PostgresServer, database: str, change: str
) -> None:
    store = await open_store(postgres.url(database))
    keys = "abcdefghijklmnop"  # in every part of the table
    await store.write([item(key, data={"n": 1, "m": 2}) for key in keys], [])
    former, later = (named_columns([(name, "integer")]) for name in "nm")
    await store.views.make(ItemView(name="shelf", spider="books", columns=former, is_table=True))
    changed = ItemView(name="shelf", spider="books", columns=later, is_table=True)
    with postgres.session(database) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for key in "agp":
            writer.stdin.write(f"BEGIN; UPDATE shoal.items SET url = '{key}' WHERE key = '{key}'; SELECT 'held';\n")
            writer.stdin.flush()
            assert await asyncio.to_thread(writer.stdout.readline) == "held\n"
            changing = asyncio.create_task(
                store.views.make(changed) if change == "columns" else store.views.drop("shelf")
            )
            await eventually(lambda: asyncio.to_thread(lambda: postgres.call(WAITS, database=database) == "1"))
            writer.stdin.write(f"UPDATE shoal.items SET url = '{key}'; COMMIT;\n")
            writer.stdin.write(f"SELECT count(*) FROM shoal.items WHERE url = '{key}';\n")
            writer.stdin.flush()
            assert await asyncio.to_thread(writer.stdout.readline) == f"{len(keys)}\n"
            await changing
            await store.views.make(ItemView(name="shelf", spider="books", columns=former, is_table=True))
        writer.stdin.close()
    await store.close()
