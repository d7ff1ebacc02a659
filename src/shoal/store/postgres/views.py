"""Views and tables of items in PostgreSQL. A table follows `items` by triggers: in the transaction of each write."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec

from shoal.errors import StorageError, UsageError
from shoal.store.item_views import (
    ItemView,
    ViewColumn,
    ViewCount,
    check_former,
    check_view,
    counted,
    in_former_order,
    name_is_taken,
    no_such_view,
)
from shoal.store.postgres import view_sql
from shoal.store.postgres.connection import Connection, PostgresLink

ITEMS_PER_STEP = 1000
COMBINATIONS = 10_000
# Writers of items queue behind these statements: they must not wait as long as a reader that blocks them.
LOCK_SECONDS = 10
MAKE_SECONDS = 600.0

_ALL = "SELECT name, spider, is_table, origin, columns, position IS NULL FROM item_views"
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('shoal views ' || current_schema(), 0))"
# Before anything else, and of all parts at once: writers and readers of items have locked this table first as well. Who
# takes the parts one after the other, as a statement on triggers does, meets them half-way, and both wait for ever.
_WITHOUT_WRITERS = "LOCK TABLE items IN SHARE ROW EXCLUSIVE MODE"
_ALONE = "LOCK TABLE items IN ACCESS EXCLUSIVE MODE"
# The function has it, and the rights of its owner: a table of the same name that a writer makes for its session alone
# must not come first, as it does where a path does not name that schema.
_PATH = "SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true)"
_IS_TAKEN = """
    WITH here AS (SELECT quote_ident(current_schema())::regnamespace AS schema)
    SELECT EXISTS (SELECT FROM pg_class, here WHERE relname = $1 AND relnamespace = schema)
        OR EXISTS (SELECT FROM pg_type, here WHERE typname = $1 AND typnamespace = schema)"""
_KEEP = """
    INSERT INTO item_views (name, spider, is_table, origin, columns, position) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (name) DO UPDATE SET
        origin = excluded.origin, columns = excluded.columns, position = excluded.position"""
_GRANTS = """
    SELECT privilege_type, CASE WHEN grantee = 0 THEN NULL ELSE pg_get_userbyid(grantee) END
    FROM pg_class, aclexplode(relacl)
    WHERE relname = $1 AND relnamespace = quote_ident(current_schema())::regnamespace AND grantee <> relowner"""


class PostgresViews:
    """Keeps `Views` in the store's schema."""

    def __init__(self, link: PostgresLink) -> None:
        self._link = link

    async def all(self) -> list[ItemView]:
        """The views and tables, by name."""
        async with self._link.transaction(reads=True) as connection:
            return [_view(row) for row in await connection.fetch(f"{_ALL} ORDER BY name")]

    async def make(self, view: ItemView) -> None:
        """Make or change one. Writers of items wait while its triggers are made."""
        check_view(view)
        async with self._changing() as connection:
            former = await _find(connection, view.name)
            if former is None:
                if await connection.fetchval(_IS_TAKEN, view.name):
                    raise name_is_taken(view.name)
                await _create(connection, view)
            else:
                check_former(view, former)
                view = msgspec.structs.replace(view, columns=in_former_order(view.columns, former.columns))
                if view.columns == former.columns:
                    await connection.execute(
                        "UPDATE item_views SET origin = $2 WHERE name = $1", view.name, view.origin
                    )
                    return
                await _change(connection, view, former)
            columns = msgspec.json.encode(view.columns).decode()
            position = "" if view.is_table else None
            await connection.execute(_KEEP, view.name, view.spider, view.is_table, view.origin, columns, position)

    async def fill(self, name: str) -> AsyncIterator[int]:
        """Bring the items that are there into a table, a transaction per step."""
        while True:
            async with self._changing() as connection:
                view = await _find(connection, name)
                if view is None:
                    raise no_such_view(name)
                if view.filled:
                    return
                start = await connection.fetchval("SELECT position FROM item_views WHERE name = $1", name)
                ((brought, last),) = await connection.fetch(view_sql.fill_statement(view), start, ITEMS_PER_STEP)
                position = last if brought == ITEMS_PER_STEP else None
                await connection.execute("UPDATE item_views SET position = $2 WHERE name = $1", name, position)
            yield brought

    async def count(self, name: str) -> ViewCount:
        """The rows, and what does not fit."""
        async with self._link.transaction(reads=True, seconds=MAKE_SECONDS) as connection:
            if await _find(connection, name) is None:
                raise no_such_view(name)
            query = f'SELECT "_misfit", count(*) FROM {view_sql.identifier(name)} GROUP BY 1 ORDER BY 2 DESC LIMIT $1'  # noqa: S608 -- quoted
            return counted([(row[0], row[1]) for row in await connection.fetch(query, COMBINATIONS)])

    async def drop(self, name: str) -> bool:
        """Drop one."""
        async with self._changing() as connection:
            view = await _find(connection, name)
            if view is None:
                return False
            if view.is_table:
                await _let_go(connection, view)
            kind = "TABLE" if view.is_table else "VIEW"
            await connection.execute(f"DROP {kind} IF EXISTS {view_sql.identifier(name)}")
            await connection.execute("DELETE FROM item_views WHERE name = $1", name)
        return True

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[Connection]:
        """A transaction that changes views, one at a time."""
        async with self._link.transaction(seconds=MAKE_SECONDS) as connection:
            try:
                await connection.execute(_LOCK)
                await connection.execute(f"SET LOCAL lock_timeout TO '{LOCK_SECONDS}s'")
                yield connection
            except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
                raise StorageError(
                    "somebody else holds the items or this view for long, as a query or a backup does: run this again"
                    " when that is over"
                ) from None
            except asyncpg.DependentObjectsStillExistError as error:
                what = self._link.address.without_secrets(error.detail or str(error))
                raise UsageError(f"something else uses this view or a column of it: {what}; drop that first") from None


def _view(row: Any) -> ItemView:
    name, spider, is_table, origin, columns, is_filled = row
    return ItemView(
        name=name,
        spider=spider,
        is_table=is_table,
        origin=origin,
        columns=msgspec.json.decode(columns, type=tuple[ViewColumn, ...]),
        filled=is_filled,
    )


async def _find(connection: Connection, name: str) -> ItemView | None:
    row = await connection.fetchrow(f"{_ALL} WHERE name = $1", name)
    return None if row is None else _view(row)


async def _create(connection: Connection, view: ItemView) -> None:
    if not view.is_table:
        await connection.execute(view_sql.view_statement(view))
        return
    await connection.execute(_WITHOUT_WRITERS)
    await connection.execute(view_sql.table_statement(view))
    for column in view.columns:
        if column.indexed:
            await connection.execute(view_sql.index_statement(view, column))
    await connection.execute(_PATH)
    for statement in (view_sql.function_statement(view), *view_sql.trigger_statements(view)):
        await connection.execute(statement)


async def _change(connection: Connection, view: ItemView, former: ItemView) -> None:
    """A table keeps its rows: new and changed columns are empty until it is filled again."""
    name = view_sql.identifier(view.name)
    if not view.is_table:
        # Replaced, a view could only get more columns at its end, and ours are there.
        grants = await connection.fetch(_GRANTS, view.name)
        await connection.execute(f"DROP VIEW {name}")
        await connection.execute(view_sql.view_statement(view))
        for privilege, role in grants:
            await connection.execute(view_sql.grant_statement(view, privilege, role))
        return
    await connection.execute(_WITHOUT_WRITERS)
    for column in former.columns:
        if column not in view.columns:
            await connection.execute(f"DROP INDEX IF EXISTS {view_sql.index_name(former, column)}")
    there = {(column.name, column.field, column.kind) for column in former.columns}
    wanted = {(column.name, column.field, column.kind) for column in view.columns}
    for column in former.columns:
        if (column.name, column.field, column.kind) not in wanted:
            await connection.execute(f"ALTER TABLE {name} DROP COLUMN {view_sql.identifier(column.name)}")
    for column in view.columns:
        if (column.name, column.field, column.kind) not in there:
            await connection.execute(f"ALTER TABLE {name} ADD COLUMN {view_sql.column_definition(column)}")
        if column.indexed and column not in former.columns:
            await connection.execute(view_sql.index_statement(view, column))
    # The triggers stay as they are: to drop one would also keep readers of items out.
    await connection.execute(_PATH)
    await connection.execute(view_sql.function_statement(view))


async def _let_go(connection: Connection, view: ItemView) -> None:
    await connection.execute(_ALONE)
    for name in view_sql.trigger_names(view):
        await connection.execute(f"DROP TRIGGER IF EXISTS {name} ON items")
    await connection.execute(f"DROP FUNCTION IF EXISTS {view_sql.function_name(view)}()")
