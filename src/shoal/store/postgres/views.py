"""Item views and tables in PostgreSQL. A table follows `items` by triggers, in the transaction of each write. Every
name and text is quoted here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg
import msgspec

from shoal.errors import StorageError, UsageError
from shoal.store.item_views import (
    MISFIT,
    ItemView,
    Kind,
    ViewColumn,
    ViewCount,
    check_former,
    check_view,
    counted,
    in_former_order,
    name_is_taken,
    no_such_view,
    own_columns,
)
from shoal.store.postgres.connection import Connection, PostgresLink

_OWN: Final = {
    "_key": ("key", 'text COLLATE "C" PRIMARY KEY'),
    "_url": ("url", 'text COLLATE "C" NOT NULL'),
    "_crawl": ("crawl", 'text COLLATE "C" NOT NULL'),
    "_first_seen": ("first_seen", "timestamptz NOT NULL"),
    "_last_seen": ("last_seen", "timestamptz NOT NULL"),
    "_changed_at": ("changed_at", "timestamptz NOT NULL"),
    "_version": ("version", "integer NOT NULL"),
    "_gone_at": ("gone_at", "timestamptz"),
}
_TYPES: Final[dict[Kind, str]] = {
    "text": "text",
    "mixed": "text",
    "integer": "bigint",
    "number": "double precision",
    "decimal": "numeric",
    "boolean": "boolean",
    "time": "timestamptz",
    "date": "date",
    "json": "jsonb",
}
# A text may be longer than a btree accepts: its item must stay writable.
_HASHED: Final = ("text", "mixed", "decimal")
_GRANTED: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")


def identifier(name: str) -> str:
    """A quoted name."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A quoted text, whatever the server does with a backslash."""
    quoted = text.replace("'", "''")
    return "E'" + quoted.replace("\\", "\\\\") + "'" if "\\" in text else f"'{quoted}'"


def selected(view: ItemView, *, source: str) -> str:
    """The query for the rows of a view or table, from rows like those of `items`."""
    own = [f"item.{_OWN[name][0]} AS {identifier(name)}" for name in own_columns(is_table=view.is_table)]
    names = [f"typed.{identifier(column.name)}" for column in view.columns]
    fields = [f"item_{column.kind}({_value(column)}) AS {identifier(column.name)}" for column in view.columns]
    columns = ", ".join([*own, *names, f"{_misfits(view)} AS {identifier(MISFIT)}"])
    return f"SELECT {columns} FROM {source} AS item CROSS JOIN LATERAL (SELECT {', '.join(fields)}) AS typed"  # noqa: S608 -- all quoted


def view_statement(view: ItemView) -> str:
    """Creates or replaces the view."""
    rows = selected(view, source="items")
    return f"CREATE OR REPLACE VIEW {identifier(view.name)} AS {rows} WHERE item.spider = {literal(view.spider)}"


def table_statement(view: ItemView) -> str:
    """Creates the empty table."""
    own = [f"{identifier(name)} {_OWN[name][1]}" for name in own_columns(is_table=True)]
    fields = [column_definition(column) for column in view.columns]
    return f"CREATE TABLE {identifier(view.name)} ({', '.join([*own, *fields, f'{identifier(MISFIT)} text'])})"


def column_definition(column: ViewColumn) -> str:
    """A column with its type."""
    return f"{identifier(column.name)} {_TYPES[column.kind]}"


def index_name(view: ItemView, column: ViewColumn) -> str:
    """The name of the index on a column."""
    return f"index_{_digest(view.name, column.name)}"


def index_statement(view: ItemView, column: ViewColumn) -> str:
    """The index on a column."""
    how = "hash" if column.kind in _HASHED else "btree"
    return f"CREATE INDEX {index_name(view, column)} ON {identifier(view.name)} USING {how} ({identifier(column.name)})"


def fill_statement(view: ItemView) -> str:
    """Copies the next $2 items after the key $1 to the table; returns how many, and the last key. Items are locked in
    the order of writers: no change comes in between."""
    return (
        "WITH present AS MATERIALIZED (SELECT key, url, first_seen, changed_at, version, gone_at,"  # noqa: S608 -- quoted
        f" data || '{{}}' AS data FROM items WHERE spider = {literal(view.spider)} AND key > $1"
        f" ORDER BY key LIMIT $2 FOR UPDATE), brought AS ({_upsert(view, source='present')})"
        " SELECT count(*), max(key) FROM present"
    )


def function_statement(view: ItemView) -> str:
    """Creates or replaces the function by which the table follows `items`."""
    # Reads the data once, however many columns are taken from it.
    row = (
        "(SELECT NEW.key, NEW.url, NEW.first_seen, NEW.changed_at, NEW.version, NEW.gone_at, NEW.data || '{}' AS data)"
    )
    body = (
        "#variable_conflict use_column\nBEGIN\n"  # noqa: S608 -- all quoted
        f" IF TG_OP = 'DELETE' THEN DELETE FROM {identifier(view.name)} WHERE \"_key\" = OLD.key; RETURN NULL;"
        " END IF;\n"
        f" {_upsert(view, source=row)};\n RETURN NULL;\nEND"
    )
    tag = f"$body_{_digest(body)}$"
    # With the rights of its owner: a role that may write items may lack rights on this table.
    return (
        f"CREATE OR REPLACE FUNCTION {function_name(view)}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER"
        f" SET search_path FROM CURRENT AS {tag}{body}{tag}"
    )


def trigger_statements(view: ItemView) -> list[str]:
    """Creates the triggers that call the function."""
    spider, run = literal(view.spider), f"EXECUTE FUNCTION {function_name(view)}()"
    new, changed, deleted = trigger_names(view)
    return [
        f"CREATE TRIGGER {new} AFTER INSERT ON items FOR EACH ROW WHEN (NEW.spider = {spider}) {run}",
        f"CREATE TRIGGER {changed} AFTER UPDATE ON items FOR EACH ROW WHEN (NEW.spider = {spider} AND"
        " (NEW.version <> OLD.version OR NEW.url <> OLD.url OR NEW.gone_at IS DISTINCT FROM OLD.gone_at))"
        f" {run}",
        f"CREATE TRIGGER {deleted} AFTER DELETE ON items FOR EACH ROW WHEN (OLD.spider = {spider}) {run}",
    ]


def trigger_names(view: ItemView) -> tuple[str, str, str]:
    """The triggers by which the table follows `items`."""
    digest = _digest(view.name)
    return f"view_{digest}_new", f"view_{digest}_changed", f"view_{digest}_deleted"


def function_name(view: ItemView) -> str:
    """The function that the triggers call."""
    return f"view_{_digest(view.name)}"


def grant_statement(view: ItemView, privilege: str, role: str | None) -> str:
    """Grants a right that the former view had; no role: to everybody."""
    if privilege not in _GRANTED:
        raise ValueError(privilege)
    return f"GRANT {privilege} ON {identifier(view.name)} TO {'PUBLIC' if role is None else identifier(role)}"


def _upsert(view: ItemView, *, source: str) -> str:
    names = [identifier(name) for name in (*own_columns(is_table=True), *(c.name for c in view.columns), MISFIT)]
    changes = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
    return (
        f"INSERT INTO {identifier(view.name)} ({', '.join(names)}) {selected(view, source=source)}"
        f' ON CONFLICT ("_key") DO UPDATE SET {changes}'
    )


def _value(column: ViewColumn) -> str:
    return f"item.data -> {literal(column.field)}"


def _misfits(view: ItemView) -> str:
    pieces = []
    for column in view.columns:
        name = literal("," + json.dumps(column.name, ensure_ascii=False))
        is_given = f"jsonb_typeof({_value(column)}) <> 'null'"
        pieces.append(f"CASE WHEN {is_given} AND typed.{identifier(column.name)} IS NULL THEN {name} ELSE '' END")
    return f"nullif('[' || substr({' || '.join(pieces)}, 2) || ']', '[]')"


def _digest(*names: str) -> str:
    return hashlib.sha256("\0".join(names).encode()).hexdigest()[:16]


ITEMS_PER_STEP = 1000
COMBINATIONS = 10_000
# Writers of items queue behind these statements: a long read must not block them as well.
LOCK_SECONDS = 10
MAKE_SECONDS = 600.0

_ALL = "SELECT name, spider, is_table, origin, columns, position IS NULL FROM item_views"
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('shoal views ' || current_schema(), 0))"
# Before any other lock, and on all partitions at once: readers and writers lock this table first as well. Locking one
# partition after the other, as a statement on triggers does, would deadlock with them.
_WITHOUT_WRITERS = "LOCK TABLE items IN SHARE ROW EXCLUSIVE MODE"
_ALONE = "LOCK TABLE items IN ACCESS EXCLUSIVE MODE"
# The search path of the function, which runs with the rights of its owner: a temporary table of the same name must not
# come first, as it does in a path without pg_temp at its end.
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
    """Implements `Views` in the store's schema."""

    def __init__(self, link: PostgresLink) -> None:
        self._link = link

    async def all(self) -> list[ItemView]:
        """The views and tables, by name."""
        async with self._link.transaction(reads=True) as connection:
            return [_view(row) for row in await connection.fetch(f"{_ALL} ORDER BY name")]

    async def make(self, view: ItemView) -> None:
        """Create or change a view. Writers of items wait while its triggers are created."""
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
        """Copy the existing items into a table, one transaction per step."""
        while True:
            async with self._changing() as connection:
                view = await _find(connection, name)
                if view is None:
                    raise no_such_view(name)
                if view.filled:
                    return
                start = await connection.fetchval("SELECT position FROM item_views WHERE name = $1", name)
                ((brought, last),) = await connection.fetch(fill_statement(view), start, ITEMS_PER_STEP)
                position = last if brought == ITEMS_PER_STEP else None
                await connection.execute("UPDATE item_views SET position = $2 WHERE name = $1", name, position)
            yield brought

    async def count(self, name: str) -> ViewCount:
        """Count rows and misfits."""
        async with self._link.transaction(reads=True, seconds=MAKE_SECONDS) as connection:
            if await _find(connection, name) is None:
                raise no_such_view(name)
            query = f'SELECT "_misfit", count(*) FROM {identifier(name)} GROUP BY 1 ORDER BY 2 DESC LIMIT $1'  # noqa: S608 -- quoted
            return counted([(row[0], row[1]) for row in await connection.fetch(query, COMBINATIONS)])

    async def drop(self, name: str) -> bool:
        """Drop a view or table."""
        async with self._changing() as connection:
            view = await _find(connection, name)
            if view is None:
                return False
            if view.is_table:
                await _let_go(connection, view)
            kind = "TABLE" if view.is_table else "VIEW"
            await connection.execute(f"DROP {kind} IF EXISTS {identifier(name)}")
            await connection.execute("DELETE FROM item_views WHERE name = $1", name)
        return True

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[Connection]:
        """A transaction that changes views; one at a time."""
        async with self._link.transaction(seconds=MAKE_SECONDS) as connection:
            try:
                await connection.execute(_LOCK)
                await connection.execute(f"SET LOCAL lock_timeout TO '{LOCK_SECONDS}s'")
                yield connection
            except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
                raise StorageError(
                    "another program locks the items or this view for long, such as a query or a backup: run this again"
                    " when it has ended"
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
        await connection.execute(view_statement(view))
        return
    await connection.execute(_WITHOUT_WRITERS)
    await connection.execute(table_statement(view))
    for column in view.columns:
        if column.indexed:
            await connection.execute(index_statement(view, column))
    await connection.execute(_PATH)
    for statement in (function_statement(view), *trigger_statements(view)):
        await connection.execute(statement)


async def _change(connection: Connection, view: ItemView, former: ItemView) -> None:
    """Change a view. A table keeps its rows: new and changed columns are empty until it is filled again."""
    name = identifier(view.name)
    if not view.is_table:
        # Dropped: a replaced view could only get more columns at its end, where our own columns are.
        grants = await connection.fetch(_GRANTS, view.name)
        await connection.execute(f"DROP VIEW {name}")
        await connection.execute(view_statement(view))
        for privilege, role in grants:
            await connection.execute(grant_statement(view, privilege, role))
        return
    await connection.execute(_WITHOUT_WRITERS)
    for column in former.columns:
        if column not in view.columns:
            await connection.execute(f"DROP INDEX IF EXISTS {index_name(former, column)}")
    there = {(column.name, column.field, column.kind) for column in former.columns}
    wanted = {(column.name, column.field, column.kind) for column in view.columns}
    for column in former.columns:
        if (column.name, column.field, column.kind) not in wanted:
            await connection.execute(f"ALTER TABLE {name} DROP COLUMN {identifier(column.name)}")
    for column in view.columns:
        if (column.name, column.field, column.kind) not in there:
            await connection.execute(f"ALTER TABLE {name} ADD COLUMN {column_definition(column)}")
        if column.indexed and column not in former.columns:
            await connection.execute(index_statement(view, column))
    # The triggers stay: dropping one would lock out readers of items.
    await connection.execute(_PATH)
    await connection.execute(function_statement(view))


async def _let_go(connection: Connection, view: ItemView) -> None:
    await connection.execute(_ALONE)
    for name in trigger_names(view):
        await connection.execute(f"DROP TRIGGER IF EXISTS {name} ON items")
    await connection.execute(f"DROP FUNCTION IF EXISTS {function_name(view)}()")
