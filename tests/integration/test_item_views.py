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
from shoal.testing.waiting import wait_until

PRODUCTS = 6
PAGE = ROOT / "docs" / "how-to" / "item-views.md"
BOOK = "from dataclasses import dataclass\n@dataclass\nclass Book:\n    title: str\n    price: float\n"


def answered(folder: Folder, statement: str, *options: str) -> list[dict[str, object]]:
    lines = folder.run("sql", statement, "--json", *options).stdout.splitlines()
    return [json.loads(line) for line in lines]


def test_a_view_and_a_table_of_a_crawls_items(folder: Folder, site: SiteProcess) -> None:
    (folder.path / "items.py").write_text(BOOK)
    spider = folder.spider(site.url)
    folder.run("run", spider)
    made = folder.run("store", "view", "books")
    assert f"view books is made: {PRODUCTS} items, 2 columns\n  title text\n  price text\n" in made.stdout
    assert len(answered(folder, "SELECT title, price FROM books WHERE price LIKE '£%'")) == PRODUCTS
    wrong = folder.run("store", "view", "books", "--type", "items.py:Book", "--table", "--name", "shelf")
    assert f"{PRODUCTS} items with a value that does not fit, which is NULL here: price ({PRODUCTS})" in wrong.stdout
    assert answered(folder, "SELECT DISTINCT price, _misfit FROM shelf") == [{"price": None, "_misfit": '["price"]'}]
    again = folder.run("store", "view", "books", "--table", "--name", "shelf", "--index", "title")
    assert "table shelf has changed" in again.stdout
    assert "now: price text (was number)" in again.stdout
    assert "now: title text, indexed (was text)" in again.stdout
    same = folder.run("store", "view", "books", "--table", "--name", "shelf", "--index", "title")
    assert "shelf is as it was" in same.stdout
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
    assert "did you mean 'shelf'?" in folder.refusal("store", "view", "books", "--drop", "--name", "self")
    folder.run("store", "view", "books", "--drop")
    assert [one["name"] for one in folder.json("store", "views")] == ["shelf"]


def test_a_folder_of_json_lines_says_what_to_use_instead(folder: Folder, site: SiteProcess) -> None:
    folder.run("run", folder.spider(site.url), "--store", "files:out")
    refusal = folder.refusal("store", "view", "books", "--store", "files:out")
    assert "write `shoal export --spider books -o items.parquet`" in refusal


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
