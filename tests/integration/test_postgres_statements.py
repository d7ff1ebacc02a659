"""SQL that people ask a PostgreSQL store: it reads, within a time, whoever asks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_stores import Open

from shoal.errors import StorageError, UsageError
from shoal.store.postgres.store import PostgresStore
from shoal.testing.contract.store.rows import everything, item
from shoal.testing.servers.postgres_server import PostgresServer


async def test_a_statement_has_a_time_limit(new_store: Open) -> None:
    store = await new_store()
    with pytest.raises(StorageError, match=r"took longer than 0\.2 s"):
        await store.query("SELECT pg_sleep(30)", limit=1, seconds=0.2)
    assert (await store.query("EXPLAIN SELECT 1", limit=1)).rows
    for sql in ("DELETE FROM items RETURNING *", "SELECT set_config('transaction_read_only', 'off', false)"):
        with pytest.raises(UsageError):
            await store.query(sql, limit=1)


@pytest.fixture
def writable() -> Iterator[Path]:
    """A folder in which the server, which runs as another user, may write."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


ATTACKS = [
    "SELECT lo_export(1, '{path}')",
    "SELECT lo_import('/etc/hostname')",
    "SELECT pg_read_file('/etc/hostname')",
    "SELECT * FROM pg_ls_dir('/')",
    "SELECT pg_reload_conf()",
    "COPY (SELECT 1) TO '{path}'",
    "COPY (SELECT 1) TO PROGRAM 'touch {path}'",
    "SELECT set_config('role', 'none', true), query_to_xml('SELECT lo_export(1, ''{path}'')', true, false, '')",
    "SELECT pg_catalog . \"set_config\"('role', 'none', true)",
    "SELECT Set_Config('session_authorization', 'default', true)",
    "SELECT U&\"set\\005fconfig\"('role', 'none', true)",
    "SELECT query_to_xml('SELECT set_' || 'config(''role'', ''none'', true)', true, false, '')",
    "SELECT * FROM ts_stat('SELECT lo_export(1, ''{path}'')::text::tsvector')",
    "SELECT 1; RESET ROLE; SELECT lo_export(1, '{path}')",
    "RESET ROLE",
    "DELETE FROM items",
    "WITH gone AS (DELETE FROM items RETURNING *) SELECT * FROM gone",
    "CREATE TABLE more (a int)",
]


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_statement_of_a_superuser_writes_nothing_and_reads_no_files(
    new_store: Open, postgres: PostgresServer, database: str, writable: Path, attack: str
) -> None:
    path = writable / "written"
    postgres.call(
        "SELECT lo_from_bytea(1, 'x') WHERE NOT EXISTS (SELECT FROM pg_largeobject_metadata)", database=database
    )
    store = await new_store()
    await store.write([item("a")], [])
    with pytest.raises(UsageError):
        await store.query(attack.format(path=path), limit=10)
    assert os.listdir(writable) == []
    answer = await store.query("SELECT key, current_user::text FROM items", limit=10)
    assert answer.rows == [("a", "pg_read_all_data")]
    await store.write([item("b")], [])
    assert len(await everything(store)) == 2


async def test_an_ordinary_user_asks_as_such(new_store: Open, postgres: PostgresServer, database: str) -> None:
    await (await new_store()).write([item("a")], [])
    postgres.call(
        "DROP ROLE IF EXISTS asker; CREATE ROLE asker LOGIN PASSWORD 's3cr3t'; GRANT USAGE ON SCHEMA shoal TO asker;"
        " GRANT SELECT ON ALL TABLES IN SCHEMA shoal TO asker",
        database=database,
    )
    store = await PostgresStore.open(f"postgresql://asker:s3cr3t@127.0.0.1:{postgres.port}/{database}")
    answer = await store.query("SELECT key, current_user::text, set_config('a.b', 'c', true) FROM items", limit=10)
    assert answer.rows == [("a", "asker", "c")]
    with pytest.raises(UsageError, match="permission denied for function lo_export"):
        await store.query("SELECT lo_export(1, '/tmp/written')", limit=10)
    await store.close()
    postgres.call("DROP OWNED BY asker; DROP ROLE asker", database=database)
