"""A real PostgreSQL server and what happens to it: many at once, restarts, wrong words, full weeks, odd rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest
from postgres_stores import Open, refusal

from shoal.errors import ServerUnreachable, ShoalError, UsageError
from shoal.store.base import ItemRule
from shoal.store.postgres.store import PostgresStore
from shoal.store.rules import week_of
from shoal.testing.contract.store.rows import contents, everything, fetch, item
from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.servers.programs import free_port
from shoal.testing.waiting import eventually
from shoal.worker.outages import until_reachable

A_DAY = 86_400.0
A_WEEK = 7 * A_DAY


@pytest.fixture(scope="module")
def stoppable() -> Iterator[PostgresServer]:
    server = PostgresServer().start()
    yield server
    server.remove()


@pytest.fixture
def own_server(stoppable: PostgresServer) -> PostgresServer:
    """A server that the test may stop and starts again, with an empty database."""
    stoppable.call("DROP SCHEMA IF EXISTS shoal CASCADE")
    return stoppable


async def test_a_role_that_may_only_read_reads_what_others_made(
    new_store: Open, postgres: PostgresServer, database: str
) -> None:
    await (await new_store()).write([item("a")], [])
    postgres.call(
        "DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN PASSWORD 's3cr3t'; GRANT USAGE ON SCHEMA shoal TO reader;"
        " GRANT SELECT ON ALL TABLES IN SCHEMA shoal TO reader",
        database=database,
    )
    url = f"postgresql://reader:s3cr3t@127.0.0.1:{postgres.port}/{database}"
    store = await PostgresStore.open(url)
    assert [stored.key for stored in await everything(store)] == ["a"]
    with pytest.raises(UsageError, match="permission denied for table items"):
        await store.write([item("b")], [])
    await store.close()
    error = await refusal(f"{url}?schema=mine")
    assert isinstance(error, UsageError)
    assert f'GRANT CREATE ON DATABASE "{database}"' in str(error)
    postgres.call("DROP OWNED BY reader; DROP ROLE reader", database=database)


@pytest.mark.parametrize(
    ("url", "kind", "complaint"),
    [
        ("postgresql://shoal:s3cr3t-no@127.0.0.1:{port}/postgres", UsageError, "check user and password in the URL"),
        ("postgresql://nobody:s3cr3t@127.0.0.1:{port}/postgres", UsageError, "check user and password in the URL"),
        ("{server}/absent", UsageError, "make it with `createdb absent`"),
        ("{server}/postgres?sharks=3", UsageError, 'unrecognized configuration parameter "sharks"'),
        ("{server}/postgres?sslmode=require", UsageError, "check sslmode"),
        ("{server}/postgres?sslmode=perhaps", UsageError, "sslmode"),
        ("{server}/postgres?connect_timeout=soon", UsageError, "connect_timeout"),
        ("{server}/postgres?schema=pg_mine", UsageError, "cannot be the name of a schema"),
        ("postgresql://shoal:s3cr3t@127.0.0.1:{closed}/x", ServerUnreachable, "cannot reach PostgreSQL at"),
        ("postgresql://127.0.0.1:{closed}/x?user=me&password=s3cr3t", ServerUnreachable, "cannot reach PostgreSQL at"),
        ("postgresql://shoal:s3cr3t@127.0.0.1:port/x", UsageError, "is not a usable PostgreSQL URL"),
        ("postgresql://shoal:s3cr3t/1@127.0.0.1:{closed}/x", UsageError, "%2F"),
    ],
)
async def test_each_failure_to_connect_is_one_line_without_the_password(
    postgres: PostgresServer, url: str, kind: type[ShoalError], complaint: str
) -> None:
    server = postgres.url("").rstrip("/")
    error = await refusal(url.format(port=postgres.port, server=server, closed=free_port()))
    assert isinstance(error, kind), error
    assert complaint in str(error)


async def test_the_address_of_a_store_does_not_show_the_password(new_store: Open) -> None:
    store = await new_store()
    assert "127.0.0.1" in repr(store._link.address)
    assert "s3cr3t" not in repr(store._link.address)


async def test_options_of_libpq_that_hosts_put_into_urls_are_understood(postgres: PostgresServer) -> None:
    options = "sslmode=prefer&connect_timeout=5&channel_binding=prefer&application_name=mine&keepalives=1"
    store = await PostgresStore.open(f"{postgres.url()}?{options}&schema=s{uuid4().hex}")
    assert (await store.query("SHOW application_name", limit=1)).rows == [("mine",)]
    await store.close()


async def test_writers_on_the_same_keys_never_deadlock_and_the_newest_wins(
    new_store: Open, postgres: PostgresServer, database: str
) -> None:
    stores = [await new_store(connections=2) for _ in range(4)]
    keys = [str(number) for number in range(100)]

    async def write_all(writer: int) -> None:
        for token in range(writer, 80, len(stores)):
            ordered = keys[token:] + keys[:token]
            rows = [item(key, token=token, data={"v": token}) for key in ordered[:: 1 if token % 2 else -1]]
            await stores[writer].write(rows, [fetch(number, token=token) for number in range(10)])

    await asyncio.gather(*(write_all(writer % 4) for writer in range(8)))
    assert await contents(stores[0]) == [{"v": 79}] * 100
    lines = [line for line in postgres.log().splitlines() if database in line]
    assert not [line for line in lines if "deadlock detected" in line]


async def test_uses_at_most_so_many_connections_and_names_them(
    new_store: Open, postgres: PostgresServer, database: str
) -> None:
    store = await new_store(connections=2)
    sessions = (
        "SELECT count(*), count(*) FILTER (WHERE application_name = 'shoal'), count(*) FILTER (WHERE state LIKE"
        f" 'idle in%') FROM pg_stat_activity WHERE datname = '{database}' AND application_name <> 'psql'"
    )
    writing = [
        asyncio.create_task(store.write([item(f"{batch}/{number}") for number in range(500)], [fetch(batch)]))
        for batch in range(12)
    ]
    seen = []
    while not all(task.done() for task in writing):
        seen.append(await asyncio.to_thread(postgres.call, sessions))
    await asyncio.gather(*writing)
    assert await asyncio.to_thread(postgres.call, sessions) == "2|2|0"
    assert max(int(line.partition("|")[0]) for line in seen) == 2
    await store.close()
    assert postgres.call(sessions) == "0|0|0"


async def test_a_server_that_was_restarted_is_reached_again(own_server: PostgresServer) -> None:
    store = await PostgresStore.open(own_server.url())
    await store.write([item("before")], [fetch(1)])
    own_server.restart()
    await until_reachable(lambda: store.write([item("after")], [fetch(2)]), say=print)
    own_server.stop()
    said: list[str] = []
    waiting = asyncio.create_task(until_reachable(lambda: store.write([item("away")], [fetch(3)]), say=said.append))
    await eventually(lambda: said)
    assert not waiting.done()
    await asyncio.to_thread(own_server.start)
    assert await waiting == {}
    assert [stored.key for stored in await everything(store)] == ["after", "away", "before"]
    assert len(await store.fetches("c1", [1, 2, 3])) == 3
    assert ["cannot reach PostgreSQL at" in line for line in said] == [True]
    await store.close()


async def test_a_session_ended_in_the_middle_of_a_write_leaves_nothing_half_done(own_server: PostgresServer) -> None:
    store = await PostgresStore.open(own_server.url())
    await store.write([item("slow", data={"v": 0}), item("other", data={"v": 0})], [])
    with _locked(own_server, "SELECT * FROM shoal.items WHERE key = 'slow' FOR UPDATE"):
        rows = [item(key, data={"v": 1}, token=2) for key in ("other", "slow")]
        writing = asyncio.create_task(store.write(rows, [fetch(1)]))
        await _until_waiting(own_server)
        own_server.kill()
        with pytest.raises(ServerUnreachable):
            await writing
    own_server.start()
    assert await contents(store) == [{"v": 0}] * 2
    assert await store.write(rows, [fetch(1)]) == {}
    assert await contents(store) == [{"v": 1}] * 2
    await store.close()


async def test_what_passes_by_itself_is_waited_for(new_store: Open, postgres: PostgresServer, database: str) -> None:
    await (await new_store()).write([item("a")], [])
    postgres.call(f'ALTER DATABASE "{database}" SET default_transaction_read_only = on')
    store = await new_store()
    with pytest.raises(ServerUnreachable, match="takes no writes now: cannot execute INSERT in a read-only"):
        await store.write([item("b")], [])
    postgres.call(f'ALTER DATABASE "{database}" RESET default_transaction_read_only')
    postgres.call(f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS true CONNECTION LIMIT 0')
    postgres.call("DROP ROLE IF EXISTS plain; CREATE ROLE plain LOGIN PASSWORD 'x'")
    error = await refusal(f"postgresql://plain:x@127.0.0.1:{postgres.port}/{database}")
    assert isinstance(error, ServerUnreachable)
    assert "too many connections" in str(error)
    postgres.call("DROP ROLE plain")


async def test_lines_lie_in_the_weeks_of_their_times(new_store: Open, postgres: PostgresServer, database: str) -> None:
    stores = [await new_store() for _ in range(4)]
    now = time.time()
    monday = 4 * A_DAY + week_of(now) * A_WEEK
    times = [monday - 0.000001, monday, now, monday + A_WEEK - 0.000001, monday + A_WEEK, 0.0, now + 400 * A_DAY, 1e300]
    lines = [fetch(number, at=at) for number, at in enumerate(times)]
    # All at once, twice: whoever needs a week first makes it.
    await asyncio.gather(*(store.write([], lines) for store in stores * 2))
    counts = postgres.call(
        "SELECT relname, count(*) FROM shoal.fetches AS f JOIN pg_class ON pg_class.oid = f.tableoid"
        " GROUP BY 1 ORDER BY 1",
        database=database,
    )
    weeks = [time.strftime("%Y%m%d", time.gmtime(monday + step * A_WEEK)) for step in (-1, 0, 1)]
    expected = [f"fetches_{week}|{lines}" for week, lines in zip(weeks, (1, 3, 1), strict=True)]
    assert counts.splitlines() == [*expected, "fetches_other|3"]
    assert len(await stores[0].fetches("c1", range(8))) == 8


async def test_lines_of_an_early_clock_move_into_their_week_when_it_is_made(
    new_store: Open, postgres: PostgresServer, database: str
) -> None:
    store, now = await new_store(), time.time()
    # As if it had been written by a clock that was far ahead then.
    postgres.call(
        "INSERT INTO shoal.fetches"
        " SELECT 'c1', 5, 'u', 'h', '', 200, 'ok', 1, 1, '', '', 0, '', '', 0, '', NULL, now()",
        database=database,
    )
    assert postgres.call("SELECT count(*) FROM shoal.fetches_other", database=database) == "1"
    await store.write([], [fetch(1, at=now)])
    assert postgres.call("SELECT count(*) FROM shoal.fetches_other", database=database) == "0"
    assert sorted(row.key for row in await store.fetches("c1", [1, 5])) == [1, 5]


async def test_retention_drops_whole_weeks_and_what_comes_later_for_them_is_still_written(
    new_store: Open, postgres: PostgresServer, database: str
) -> None:
    store, now = await new_store(), time.time()
    old = now - 2 * A_WEEK
    await store.write([item(at=old)], [fetch(1, at=old), fetch(2, at=now)])
    weeks = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'shoal.fetches'::regclass"
    before = int(postgres.call(weeks, database=database))
    assert await store.tidy(retention=3 * A_WEEK) == 0
    gone = await store.tidy(retention=A_DAY)  # the week after was made with it, and has ended too by now
    assert gone in (1, 2)
    assert int(postgres.call(weeks, database=database)) == before - gone
    assert [row.key for row in await store.fetches("c1", [1, 2])] == [2]
    await store.write([], [fetch(3, at=old)])
    assert [row.key for row in await store.fetches("c1", [3])] == [3]
    assert await store.tidy(retention=A_DAY) == 1
    assert await store.count_items() == 1


async def test_a_week_that_is_being_read_is_dropped_the_next_time(
    new_store: Open, postgres: PostgresServer, database: str
) -> None:
    store = await new_store()
    await store.write([], [fetch(1, at=time.time() - 2 * A_WEEK)])
    with _locked(postgres, "SELECT count(*) FROM shoal.fetches", database=database):
        assert await store.tidy(retention=A_DAY) == 0
        await asyncio.wait_for(store.write([], [fetch(2, at=time.time())]), 60)
    assert await store.tidy(retention=A_DAY) > 0


async def test_a_row_that_only_the_server_refuses_is_found_and_the_others_are_stored(new_store: Open) -> None:
    store = await new_store()
    rows = [item(str(number)) for number in range(100)]
    rows[17] = item("tiny", data=b'{"a":1e-20000}')
    rows[63] = item("huge token", token=2**64)
    refused = await store.write(rows, [fetch(1)], rule=ItemRule(keep_versions=True))
    assert refused.keys() == {17, 63}
    assert all("refuses: " in why and "\n" not in why for why in refused.values()), refused
    assert await store.count_items() == 98
    assert await store.fetches("c1", [1]) == [fetch(1)]
    assert len([row async for row in store.versions()]) == 98


async def test_large_floats_come_back_as_floats_and_long_integers_as_they_were(new_store: Open) -> None:
    store = await new_store()
    data = {"a": 1.5e300, "b": [-2e200, 10**30 + 1, int("123456789" * 9)], "text": "0" * 50, "c": 1e22}
    await store.write([item(data=data)], [])
    assert await contents(store) == [data]


async def test_the_views_tell_of_hosts_and_of_the_latest_attempts(new_store: Open) -> None:
    store, now = await new_store(), time.time()
    lines = [fetch(number, at=now - 60, elapsed=number / 10, size=100, status=200) for number in range(1, 5)]
    late = [
        fetch(1, at=now - 30, token=2, attempt=2, outcome="timeout", elapsed=0.5),
        fetch(9, at=now - 7200, url="https://b.test/"),
    ]
    await store.write([], [*lines, *late])
    answer = await store.query("SELECT * FROM host_health ORDER BY span, host", limit=9)
    rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    assert [(row["span"], row["host"], row["requests"]) for row in rows] == [
        ("day", "a.test", 5),
        ("day", "b.test", 1),
        ("hour", "a.test", 5),
    ]
    assert (float(rows[2]["ok_share"]), rows[2]["errors"], rows[2]["bytes"]) == (0.8, '{"timeout": 1}', 400)
    assert (rows[2]["p50_elapsed"], rows[2]["p95_elapsed"]) == pytest.approx((0.3, 0.48))
    answer = await store.query("SELECT outcome FROM fetches_latest WHERE key = 1", limit=9)
    assert answer.rows == [("timeout",)]


def _locked(server: PostgresServer, sql: str, *, database: str = "postgres") -> _Session:
    return _Session(server, sql, database)


class _Session:
    """Another session that has run a statement and not ended its transaction."""

    def __init__(self, server: PostgresServer, sql: str, database: str) -> None:
        self._psql = server.session(database)
        self._sql = sql

    def __enter__(self) -> None:
        assert self._psql.stdin is not None
        assert self._psql.stdout is not None
        self._psql.stdin.write(f"BEGIN; {self._sql}; SELECT 'held';\n")
        self._psql.stdin.flush()
        while "held" not in self._psql.stdout.readline():
            assert self._psql.poll() is None

    def __exit__(self, *_: object) -> None:
        self._psql.kill()
        self._psql.communicate()


async def _until_waiting(server: PostgresServer) -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    await eventually(lambda: asyncio.to_thread(lambda: server.call(waiting) != "0"))
