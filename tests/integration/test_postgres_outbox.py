"""The outbox of a PostgreSQL store: commits that overtake each other, a schema of the former version, other roles."""

from __future__ import annotations

import asyncio
from importlib.resources import files

import asyncpg
from postgres_stores import Open

from shoal.store.base import SinkPlace
from shoal.store.postgres.schema import STEPS
from shoal.store.postgres.store import PostgresStore
from shoal.testing.contract.store.rows import item
from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.waiting import eventually

PLACE = SinkPlace(spider="books", url="redis://queue.test/0?list=books")
INSERT = """
INSERT INTO shoal.items (spider, key, crawl, url, host, data, fence, first_seen, last_seen, changed_at)
VALUES ('books', $1, 'c1', 'https://a.test/', 'a.test', $2, 1, now(), now(), now())
ON CONFLICT (spider, key) DO UPDATE SET data = excluded.data, version = items.version + 1"""


async def test_a_change_that_commits_later_is_not_skipped(
    new_store: Open, postgres: PostgresServer, database: str
) -> None:
    store = await new_store()
    sink = await store.outbox.add(PLACE)
    slow = await asyncpg.connect(postgres.url(database))
    try:
        transaction = slow.transaction()
        await transaction.start()
        await slow.execute(INSERT, "first", "{}")
        await store.write([item("second")], [])
        (second,) = await store.outbox.read(sink, limit=9)
        await store.outbox.passed(sink, [second])
        await transaction.commit()
        (first,) = await store.outbox.read(sink, limit=9)
        assert (first.key, second.key) == ("first", "second")
        assert first.position < second.position
    finally:
        await slow.close()


async def test_the_changes_of_an_item_stay_in_order_though_the_later_writer_began_first(
    new_store: Open, postgres: PostgresServer, database: str
) -> None:
    store = await new_store()
    sink = await store.outbox.add(PLACE)
    early, late = [await asyncpg.connect(postgres.url(database)) for _ in range(2)]
    try:
        transaction = early.transaction()
        await transaction.start()
        # It has its transaction's number, and a position, before the other begins.
        await early.execute(INSERT, "elsewhere", "{}")
        await late.execute(INSERT, "k", '{"n":1}')
        await early.execute(INSERT, "k", '{"n":2}')
        # The reader sees only what is committed: the first content, alone.
        seen = await store.outbox.read(sink, limit=9)
        assert [(change.key, change.version) for change in seen] == [("k", 1)]
        await transaction.commit()
        found = await store.outbox.read(sink, limit=9)
        assert [change.version for change in found if change.key == "k"] == [1, 2]
    finally:
        await early.close()
        await late.close()


async def test_a_replay_waits_for_a_change_under_way(new_store: Open, postgres: PostgresServer, database: str) -> None:
    store = await new_store()
    await store.write([item("k", data={"n": 1})], [])
    sink = await store.outbox.add(PLACE)
    writer = await asyncpg.connect(postgres.url(database))
    try:
        transaction = writer.transaction()
        await transaction.start()
        await writer.execute(INSERT, "k", '{"n":2}')
        replaying = asyncio.create_task(store.outbox.replay(sink))
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        await eventually(lambda: writer.fetchval(waits))
        await transaction.commit()
        assert await replaying == 1
        found = await store.outbox.read(sink, limit=9)
        assert [(change.version, change.change) for change in found] == [(2, "changed"), (2, "new")]
    finally:
        await writer.close()


async def test_no_trigger_runs_until_the_first_sink_is_added(
    new_store: Open, postgres: PostgresServer, database: str
) -> None:
    store = await new_store()
    query = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'shoal.items'::regclass AND NOT tgisinternal"
    assert postgres.call(query, database=database) == "0"
    await asyncio.gather(*(store.outbox.add(PLACE) for _ in range(4)))
    assert postgres.call(query, database=database) == "2"


async def test_a_schema_of_the_former_version_keeps_its_items_and_gets_an_outbox(
    new_store: Open, postgres: PostgresServer, database: str
) -> None:
    former = STEPS[: STEPS.index("from_3.sql")]
    script = "".join(files("shoal.store.postgres").joinpath(step).read_text(encoding="utf-8") for step in former)
    begin = "CREATE SCHEMA shoal; SET search_path TO shoal;"
    postgres.call(f"{begin} {script} INSERT INTO schema_version VALUES ({len(former)})", database=database)
    earlier = await asyncpg.connect(postgres.url(database))
    await earlier.execute(INSERT, "k", '{"n":1}')
    store = await new_store()
    sink = await store.outbox.add(PLACE)
    # A worker of the former version, still connected.
    await earlier.execute(INSERT, "k", '{"n":2}')
    await earlier.close()
    (change,) = await store.outbox.read(sink, limit=9)
    assert (change.key, change.version, change.change) == ("k", 2, "changed")
    assert await store.outbox.replay(sink) == 1


async def test_a_schema_with_sinks_of_the_former_version_sends_what_goes_and_comes_back(
    new_store: Open, postgres: PostgresServer, database: str
) -> None:
    former = STEPS[: STEPS.index("from_4.sql")]
    script = "".join(files("shoal.store.postgres").joinpath(step).read_text(encoding="utf-8") for step in former)
    begin = "CREATE SCHEMA shoal; SET search_path TO shoal;"
    postgres.call(f"{begin} {script} INSERT INTO schema_version VALUES ({len(former)})", database=database)
    earlier = await asyncpg.connect(postgres.url(database))
    await earlier.execute("SET search_path TO shoal; SELECT note_changes()")
    await earlier.execute(
        "INSERT INTO sinks (spider, url, host, has_secret) VALUES ($1, $2, '', false)", PLACE.spider, PLACE.url
    )
    await earlier.execute(INSERT, "k", '{"n":1}')
    store = await new_store()
    # A worker of the former version, still connected.
    await earlier.execute(INSERT, "k", '{"n":2}')
    await earlier.close()
    sink = await store.outbox.add(PLACE)
    await store.mark_gone("books", unseen_since=9e9, at=9e9)
    await store.write([item("k", data={"n": 2}, token=2**61, at=9.1e9)], [])
    found = [(change.change, change.version) for change in await store.outbox.read(sink, limit=9)]
    assert found == [("new", 1), ("changed", 2), ("gone", 3), ("new", 4)]
    triggers = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'shoal.items'::regclass AND NOT tgisinternal"
    assert postgres.call(triggers, database=database) == "2"


async def test_a_role_that_may_only_write_items_still_writes_them(
    new_store: Open, postgres: PostgresServer, database: str
) -> None:
    owner = await new_store()
    sink = await owner.outbox.add(PLACE)
    name = f"writer_{database[-8:]}"
    postgres.call(
        f"CREATE ROLE {name} LOGIN PASSWORD 'w'; GRANT USAGE ON SCHEMA shoal TO {name};"
        f" GRANT SELECT, INSERT, UPDATE, DELETE ON shoal.items, shoal.fetches, shoal.schema_version TO {name}",
        database=database,
    )
    address = postgres.url(database).partition("@")[2]
    store = await PostgresStore.open(f"postgresql://{name}:w@{address}")
    await store.write([item("k")], [])
    await store.close()
    assert [change.key for change in await owner.outbox.read(sink, limit=9)] == ["k"]
