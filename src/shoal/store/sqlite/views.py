"""Views and tables of items in SQLite. A table follows `item` by triggers: in the transaction of each write."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from shoal.errors import UsageError
from shoal.sqlite_file import FileConnection, transaction
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
from shoal.store.sqlite import view_sql

ITEMS_PER_STEP = 2000
COMBINATIONS = 10_000

_ALL = "SELECT name, spider, is_table, origin, columns, position IS NULL FROM item_view"

Run = Callable[..., Awaitable[Any]]


class SqliteViews:
    """Keeps `Views`. `run` does work on the store's thread."""

    def __init__(self, connection: FileConnection, *, run: Run) -> None:
        self._connection = connection
        self._run = run

    async def all(self) -> list[ItemView]:
        """The views and tables, by name."""
        found: list[ItemView] = await self._run(_all, self._connection)
        return found

    async def make(self, view: ItemView) -> None:
        """Make or change one."""
        check_view(view)
        await self._run(_make, self._connection, view)

    async def fill(self, name: str) -> AsyncIterator[int]:
        """Bring the items that are there into a table, a transaction per step."""
        while (brought := await self._run(_fill_some, self._connection, name)) is not None:
            yield brought

    async def count(self, name: str) -> ViewCount:
        """The rows, and what does not fit."""
        found: ViewCount = await self._run(_count, self._connection, name)
        return found

    async def drop(self, name: str) -> bool:
        """Drop one."""
        dropped: bool = await self._run(_drop, self._connection, name)
        return dropped


def _all(connection: sqlite3.Connection) -> list[ItemView]:
    return [_view(row) for row in connection.execute(f"{_ALL} ORDER BY name")]


def _find(connection: sqlite3.Connection, name: str) -> ItemView | None:
    # Books is not books: but of the two a file has one.
    row = connection.execute(f"{_ALL} WHERE name = ? COLLATE BINARY", (name,)).fetchone()
    return None if row is None else _view(row)


def _view(row: tuple[Any, ...]) -> ItemView:
    name, spider, is_table, origin, columns, is_filled = row
    return ItemView(
        name=name,
        spider=spider,
        is_table=bool(is_table),
        origin=origin,
        columns=msgspec.json.decode(columns, type=tuple[ViewColumn, ...]),
        filled=bool(is_filled),
    )


def _make(connection: sqlite3.Connection, view: ItemView) -> None:
    with transaction(connection):
        former = _find(connection, view.name)
        if former is None:
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ? COLLATE NOCASE", (view.name,)).fetchone():
                raise name_is_taken(view.name)
            _create(connection, view)
        else:
            check_former(view, former)
            view = msgspec.structs.replace(view, columns=in_former_order(view.columns, former.columns))
            if view.columns == former.columns:
                connection.execute("UPDATE item_view SET origin = ? WHERE name = ?", (view.origin, view.name))
                return
            _change(connection, view, former)
        connection.execute(
            "INSERT OR REPLACE INTO item_view (name, spider, is_table, origin, columns, position)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (
                view.name,
                view.spider,
                view.is_table,
                view.origin,
                msgspec.json.encode(view.columns).decode(),
                0 if view.is_table else None,
            ),
        )


def _create(connection: sqlite3.Connection, view: ItemView) -> None:
    if not view.is_table:
        connection.execute(view_sql.view_statement(view))
        return
    connection.execute(view_sql.table_statement(view))
    _follow(connection, view)
    for column in view.columns:
        if column.indexed:
            connection.execute(view_sql.index_statement(view, column))


def _change(connection: sqlite3.Connection, view: ItemView, former: ItemView) -> None:
    """A table keeps its rows: new and changed columns are empty until it is filled again."""
    name = view_sql.identifier(view.name)
    if not view.is_table:
        connection.execute(f"DROP VIEW {name}")
        connection.execute(view_sql.view_statement(view))
        return
    _let_go(connection, former)
    for column in former.columns:
        if column not in view.columns:
            connection.execute(f"DROP INDEX IF EXISTS {view_sql.index_name(former, column)}")
    there = {(column.name, column.field, column.kind) for column in former.columns}
    wanted = {(column.name, column.field, column.kind) for column in view.columns}
    for column in former.columns:
        if (column.name, column.field, column.kind) not in wanted:
            _drop_column(connection, view, column)
    for column in view.columns:
        if (column.name, column.field, column.kind) not in there:
            connection.execute(f"ALTER TABLE {name} ADD COLUMN {view_sql.column_definition(column)}")
        if column.indexed and column not in former.columns:
            connection.execute(view_sql.index_statement(view, column))
    _follow(connection, view)


def _drop_column(connection: sqlite3.Connection, view: ItemView, column: ViewColumn) -> None:
    table, name = view_sql.identifier(view.name), view_sql.identifier(column.name)
    try:
        connection.execute(f"ALTER TABLE {table} DROP COLUMN {name}")
    except sqlite3.OperationalError as error:
        raise UsageError(f"the column {column.name} of {view.name} cannot be dropped: {error}") from None


def _follow(connection: sqlite3.Connection, view: ItemView) -> None:
    for statement in view_sql.trigger_statements(view):
        connection.execute(statement)


def _let_go(connection: sqlite3.Connection, view: ItemView) -> None:
    for name in view_sql.trigger_names(view):
        connection.execute(f"DROP TRIGGER IF EXISTS {name}")


def _fill_some(connection: sqlite3.Connection, name: str) -> int | None:
    with transaction(connection):
        view = _find(connection, name)
        if view is None:
            raise no_such_view(name)
        if view.filled:
            return None
        (start,) = connection.execute("SELECT position FROM item_view WHERE name = ?", (name,)).fetchone()
        (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM item").fetchone()
        end = start + ITEMS_PER_STEP
        statement = view_sql.upsert(view, where=" AND item.id > ? AND item.id <= ?")
        brought = connection.execute(statement, (start, end)).rowcount
        position = None if end >= last else end
        connection.execute("UPDATE item_view SET position = ? WHERE name = ?", (position, name))
    return brought


def _count(connection: sqlite3.Connection, name: str) -> ViewCount:
    if _find(connection, name) is None:
        raise no_such_view(name)
    query = (
        f'SELECT "_misfit", count(*) FROM {view_sql.identifier(name)} GROUP BY 1 ORDER BY 2 DESC LIMIT {COMBINATIONS}'  # noqa: S608 -- quoted
    )
    return counted(connection.execute(query))


def _drop(connection: sqlite3.Connection, name: str) -> bool:
    with transaction(connection):
        view = _find(connection, name)
        if view is None:
            return False
        if view.is_table:
            _let_go(connection, view)
        connection.execute(f"DROP {'TABLE' if view.is_table else 'VIEW'} IF EXISTS {view_sql.identifier(name)}")
        connection.execute("DELETE FROM item_view WHERE name = ?", (name,))
    return True
