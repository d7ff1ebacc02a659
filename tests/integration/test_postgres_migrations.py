"""The schema of a PostgreSQL store: made once, brought up to date, and refused when it is another's."""

from __future__ import annotations

import asyncio
import time
from importlib.resources import files

import pytest
from postgres_stores import Open, refusal

from shoal.errors import StorageError
from shoal.store.postgres.schema import STEPS
from shoal.store.postgres.store import PostgresStore
from shoal.testing.contract.store.rows import everything, fetch, item
from shoal.testing.servers.postgres_server import PostgresServer


async def test_eight_workers_that_start_at_once_on_an_empty_database_make_one_schema(
    new_store: Open, postgres: PostgresServer, database: str
) -> None:
    stores = await asyncio.gather(*(new_store(connections=1) for _ in range(8)))
    now = time.time()
    await asyncio.gather(
        *(store.write([item(str(number))], [fetch(number, at=now)]) for number, store in enumerate(stores))
    )
    assert await stores[0].count_items() == 8
    assert len(await stores[0].fetches("c1", range(8))) == 8
    assert postgres.call("SELECT * FROM shoal.schema_version", database=database) == str(len(STEPS))
    # None of them failed on the way and tried again.
    assert database not in "".join(line for line in postgres.log().splitlines() if "ERROR" in line)


async def test_two_schemas_of_one_database_do_not_see_each_other(postgres: PostgresServer, database: str) -> None:
    for name in ("shoal", 'My "Schema"; DROP'):
        store = await PostgresStore.open(f"{postgres.url(database)}?schema={name}")
        assert await store.count_items() == 0
        await store.write([item(name)], [fetch(at=time.time())])
        assert [stored.key for stored in await everything(store)] == [name]
        assert (await store.query("SELECT key FROM items", limit=9)).rows == [(name,)]
        await store.close()


async def test_a_schema_of_a_newer_shoal_is_refused(new_store: Open, postgres: PostgresServer, database: str) -> None:
    await new_store()
    postgres.call("UPDATE shoal.schema_version SET version = 8", database=database)
    error = await refusal(postgres.url(database))
    assert isinstance(error, StorageError)
    assert f"is of a newer shoal (version 8, this one knows {len(STEPS)}): upgrade shoal" in str(error)


async def test_a_schema_of_the_first_version_keeps_its_lines_and_takes_new_ones(
    new_store: Open, postgres: PostgresServer, database: str
) -> None:
    first = files("shoal.store.postgres").joinpath(STEPS[0]).read_text(encoding="utf-8")
    begin = "CREATE SCHEMA shoal; SET search_path TO shoal;"
    postgres.call(f"{begin} {first} INSERT INTO schema_version VALUES (1)", database=database)
    columns = "crawl, key, url, host, final_url, status, outcome, attempt, token, worker, exit, size, content_hash"
    values = "'c1', 1, 'https://a.test/1', 'a.test', '', 200, 'ok', 1, 1, 'w', 'direct', 9, ''"
    postgres.call(
        f"INSERT INTO shoal.fetches ({columns}, archived, elapsed, error, at) VALUES ({values}, '', 0.1, '', now())",
        database=database,
    )
    store = await new_store()
    assert postgres.call("SELECT * FROM shoal.schema_version", database=database) == str(len(STEPS))
    (line,) = await store.fetches_of(["c1"], "https://a.test/1")
    assert (line.key, line.request, line.outcome) == (1, "", "ok")
    await store.write([], [fetch(2, url="https://a.test/1", at=time.time() + 1, request="POST 3 B abc")])
    assert [row.request for row in await store.fetches_of(["c1"], "https://a.test/1")] == ["POST 3 B abc", ""]
    latest = await store.query("SELECT key, request FROM fetches_latest ORDER BY key", limit=9)
    assert latest.rows == [(1, ""), (2, "POST 3 B abc")]


@pytest.mark.parametrize(
    ("theirs", "what"),
    [
        ("items (name text)", 'relation "items" already exists'),
        ("schema_version (number integer)", 'column "version" does not exist'),
        ("schema_version (version text)", 'column "version" is no integer'),
    ],
)
async def test_a_schema_of_another_program_is_refused_and_left_alone(
    postgres: PostgresServer, database: str, theirs: str, what: str
) -> None:
    table = theirs.partition(" ")[0]
    postgres.call(
        f"CREATE SCHEMA shoal; CREATE TABLE shoal.{theirs}; INSERT INTO shoal.{table} VALUES (1)", database=database
    )
    error = await refusal(postgres.url(database))
    assert isinstance(error, StorageError)
    assert f"has tables of another program ({what}): give ?schema=NAME for another" in str(error)
    tables = postgres.call("SELECT count(*) FROM pg_tables WHERE schemaname = 'shoal'", database=database)
    assert str(tables).strip() == "1"
