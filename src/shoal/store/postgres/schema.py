"""The store's tables, made and migrated by the first process that opens them, and the weekly partitions of its log."""

from __future__ import annotations

import time
from importlib.resources import files

import asyncpg

from shoal.errors import StorageError
from shoal.store.postgres.connection import Connection, PostgresLink
from shoal.store.weeks import monday_of

# Each step takes a schema one version further. New steps go to the end; a step never changes.
STEPS = ("schema.sql", "from_1.sql", "from_2.sql", "from_3.sql", "from_4.sql", "from_5.sql", "from_6.sql")
LOCK_SECONDS = 2
REST_SECONDS = 60.0
LINES_PER_STEP = 5000

# Not to_regclass: it caches that a table did not exist a moment ago.
_IS_THERE = "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'schema_version')"
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('shoal schema ' || $1, 0))"

_NEXT_VERSIONS = f"""
    SELECT spider, key, version FROM item_versions
    WHERE (spider, key, version) > ($1, $2, $3) AND ($4::text IS NULL OR spider = $4)
    ORDER BY spider, key, version LIMIT {LINES_PER_STEP}"""  # noqa: S608 -- a number of ours
# The newer one may be kept, or be the item's own: contents that came while none were kept are missing.
_DROP_VERSIONS = """
    DELETE FROM item_versions AS old
    USING unnest($1::text[], $2::text[], $3::integer[]) AS looked (spider, key, version),
        (SELECT now() - make_interval(secs => $4) AS moment) AS before
    WHERE old.spider = looked.spider AND old.key = looked.key AND old.version = looked.version
        AND old.changed_at < before.moment AND (
            EXISTS (SELECT FROM item_versions AS new WHERE new.spider = old.spider AND new.key = old.key
                    AND new.version > old.version AND new.changed_at < before.moment)
            OR EXISTS (SELECT FROM items WHERE items.spider = old.spider AND items.key = old.key
                       AND items.version > old.version AND items.changed_at < before.moment))"""


async def prepare(link: PostgresLink) -> bool:
    """Make or migrate the tables if need be; gives whether anything was done. Refuses a newer or foreign schema."""
    async with link.transaction(reads=True) as connection:
        if await _version(connection, link) == len(STEPS):
            return False
    async with link.transaction() as connection:
        # Of workers that start at once, one makes the tables and the others find them.
        await connection.execute(_LOCK, link.address.schema)
        found = await _version(connection, link)
        if found == len(STEPS):
            return False
        schema = link.address.schema
        # Asked first: CREATE SCHEMA IF NOT EXISTS needs the right to create it even if it exists.
        if await connection.fetchval("SELECT NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema):
            await connection.execute(f"CREATE SCHEMA {link.address.quoted_schema}")
        try:
            for step in STEPS[found:]:
                await connection.execute(files("shoal.store.postgres").joinpath(step).read_text(encoding="utf-8"))
        except (asyncpg.DuplicateTableError, asyncpg.DuplicateFunctionError) as error:
            raise _foreign(link, str(error)) from None
        await connection.execute("DELETE FROM schema_version")
        await connection.execute("INSERT INTO schema_version VALUES ($1)", len(STEPS))
    return True


async def _version(connection: Connection, link: PostgresLink) -> int:
    if not await connection.fetchval(_IS_THERE, link.address.schema):
        return 0
    try:
        found = await connection.fetchval("SELECT max(version) FROM schema_version") or 0
    except asyncpg.UndefinedColumnError as error:
        raise _foreign(link, str(error)) from None
    if not isinstance(found, int):
        raise _foreign(link, 'column "version" is no integer')
    if found > len(STEPS):
        raise StorageError(
            f"the schema {link.address.schema!r} at {link.address.shown} is of a newer shoal (version {found}, this one"
            f" knows {len(STEPS)}): upgrade shoal, or give ?schema=NAME for another"
        )
    return found


def _foreign(link: PostgresLink, what: str) -> StorageError:
    return StorageError(
        f"the schema {link.address.schema!r} at {link.address.shown} has tables of another program ({what}):"
        " give ?schema=NAME for another"
    )


class Weeks:
    """The weeks of the log whose partitions are known to exist. The next one is made ahead."""

    def __init__(self, link: PostgresLink) -> None:
        self._link = link
        self._there: set[int] = set()
        self._rests_until = 0.0

    async def need(self, weeks: set[int]) -> None:
        """Make the partitions of these weeks and of the next, if they are near now by the server's clock. Lines of
        other weeks, and of a week that cannot be made while a long read holds the log, go to `fetches_other`."""
        for week in sorted(weeks - self._there):
            for one in (week, week + 1):
                if time.monotonic() >= self._rests_until and one not in self._there:
                    await self._make(one)

    async def _make(self, week: int) -> None:
        async with self._link.transaction() as connection:
            await connection.execute(f"SET LOCAL lock_timeout TO '{LOCK_SECONDS}s'")
            try:
                is_there = await connection.fetchval("SELECT add_week(to_timestamp($1))", max(monday_of(week), 0.0))
            except asyncpg.LockNotAvailableError:
                await connection.execute("ROLLBACK; BEGIN")
                self._rests_until = time.monotonic() + REST_SECONDS
                return
        if is_there:
            self._there.add(week)


async def drop_weeks(link: PostgresLink, *, retention: float) -> int:
    """Drop weeks that ended over `retention` seconds ago; gives how many. A week that is being read stays for now."""
    before = "now() - make_interval(secs => $1)"
    async with link.transaction(reads=True) as connection:
        old = [row[0] for row in await connection.fetch(f"SELECT weeks_before({before})", retention)]
    gone = 0
    for week in old:
        async with link.transaction() as connection:
            # Others queue for the log behind this statement: they must not wait as long as a reader that blocks it.
            await connection.execute(f"SET LOCAL lock_timeout TO '{LOCK_SECONDS}s'")
            try:
                await connection.execute(f"DROP TABLE IF EXISTS {week}")
            except asyncpg.LockNotAvailableError:
                await connection.execute("ROLLBACK; BEGIN")
                return gone
            gone += 1
    return gone


async def drop_lines(link: PostgresLink, *, retention: float) -> int:
    """Drop old lines of `fetches_other`, in bounded steps; gives how many."""
    query = f"""
        DELETE FROM fetches_other WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM fetches_other WHERE at < now() - make_interval(secs => $1) LIMIT {LINES_PER_STEP}))"""  # noqa: S608 -- a number of ours
    gone, step = 0, LINES_PER_STEP
    while step == LINES_PER_STEP:
        async with link.transaction() as connection:
            step = int((await connection.execute(query, retention)).rpartition(" ")[2])
        gone += step
    return gone


async def drop_versions(link: PostgresLink, spider: str | None, *, retention: float) -> int:
    """Drop kept contents that were replaced over `retention` seconds ago: there is a newer one from before then."""
    gone, last = 0, ("", "", 0)
    while True:
        async with link.transaction() as connection:
            rows = await connection.fetch(_NEXT_VERSIONS, *last, spider)
            if not rows:
                return gone
            columns = [[row[column] for row in rows] for column in range(3)]
            gone += int((await connection.execute(_DROP_VERSIONS, *columns, retention)).rpartition(" ")[2])
            last = rows[-1][0], rows[-1][1], rows[-1][2]
