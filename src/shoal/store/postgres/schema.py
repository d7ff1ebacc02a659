"""Creates the schema in a database; a migration is one more script in STEPS."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import asyncpg

from shoal.errors import StorageError
from shoal.store.postgres.connection import Connection, PostgresLink

# Each script runs once, in this order; the version of a schema is how many have run. The first migration is added
# behind `schema.sql`. A released script never changes.
STEPS = (Path(__file__).with_name("schema.sql"),)

# Not to_regclass: it caches that a table does not exist.
_IS_THERE = "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'schema_version')"
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('shoal schema ' || $1, 0))"


async def prepare(link: PostgresLink, *, steps: Sequence[Path] = STEPS) -> bool:
    """Run the missing steps; returns whether there were any. Refuses a newer schema, and one of another program."""
    async with link.transaction(reads=True) as connection:
        if await _version(connection, link, len(steps)) == len(steps):
            return False
    async with link.transaction() as connection:
        # Of workers that start together, one creates the tables.
        await connection.execute(_LOCK, link.address.schema)
        found = await _version(connection, link, len(steps))
        if found == len(steps):
            return False
        schema = link.address.schema
        # Checked first: CREATE SCHEMA IF NOT EXISTS needs the right to create it even if it exists.
        if await connection.fetchval("SELECT NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema):
            await connection.execute(f"CREATE SCHEMA {link.address.quoted_schema}")
        try:
            for step in steps[found:]:
                await connection.execute(step.read_text(encoding="utf-8"))
        except (asyncpg.DuplicateTableError, asyncpg.DuplicateFunctionError) as error:
            raise _foreign(link, str(error)) from None
        await connection.execute("DELETE FROM schema_version")
        await connection.execute("INSERT INTO schema_version VALUES ($1)", len(steps))
    return True


async def _version(connection: Connection, link: PostgresLink, newest: int) -> int:
    if not await connection.fetchval(_IS_THERE, link.address.schema):
        return 0
    try:
        found = await connection.fetchval("SELECT max(version) FROM schema_version") or 0
    except asyncpg.UndefinedColumnError as error:
        raise _foreign(link, str(error)) from None
    if not isinstance(found, int):
        raise _foreign(link, 'column "version" is no integer')
    if found > newest:
        raise StorageError(
            f"the schema {link.address.schema!r} at {link.address.shown} is of a newer shoal (version {found}, this one"
            f" knows {newest}): upgrade shoal, or give ?schema=NAME for another"
        )
    return found


def _foreign(link: PostgresLink, what: str) -> StorageError:
    return StorageError(
        f"the schema {link.address.schema!r} at {link.address.shown} has tables of another program ({what}):"
        " give ?schema=NAME for another"
    )
