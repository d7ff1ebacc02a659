"""The schema of a PostgreSQL store: made once, brought up to date, and refused when it is another's."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from postgres_stores import Open, refusal

from shoal.errors import StorageError
from shoal.store.postgres.address import parse_address
from shoal.store.postgres.connection import PostgresLink
from shoal.store.postgres.schema import STEPS, prepare
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


async def test_a_later_step_runs_once_in_a_schema_that_lacks_it_and_keeps_its_items(
    new_store: Open, postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    await (await new_store()).write([item("k")], [])
    step = tmp_path / "step.sql"
    step.write_text("ALTER TABLE items ADD COLUMN more integer NOT NULL DEFAULT 5")
    links = [PostgresLink(parse_address(postgres.url(database)), connections=1) for _ in range(4)]
    ran = await asyncio.gather(*(prepare(link, steps=(*STEPS, step)) for link in links))
    assert sorted(ran) == [False, False, False, True]
    for link in links:
        await link.close()
    assert postgres.call("SELECT key, more FROM shoal.items", database=database) == "k|5"
    assert postgres.call("SELECT * FROM shoal.schema_version", database=database) == str(len(STEPS) + 1)


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
