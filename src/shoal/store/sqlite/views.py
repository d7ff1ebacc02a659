"""Item views and tables in SQLite. A table follows `item` by triggers, in the transaction of each write. Every name and
text is quoted here."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import msgspec

from shoal.errors import UsageError
from shoal.sqlite_file import FileConnection, transaction
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

_OWN: Final = {
    "_key": ("item.key", "TEXT PRIMARY KEY"),
    "_url": ("item.url", "TEXT NOT NULL"),
    "_crawl": ("item.crawl", "TEXT NOT NULL"),
    "_first_seen": ("item.first_seen", "REAL NOT NULL"),
    "_last_seen": ("item.last_seen", "REAL NOT NULL"),
    "_changed_at": ("item.changed_at", "REAL NOT NULL"),
    "_version": ("item.version", "INTEGER NOT NULL"),
    "_gone_at": ("item.gone_at", "REAL"),
}
_TYPES: Final[dict[Kind, str]] = {
    "text": "TEXT",
    "mixed": "TEXT",
    "integer": "INTEGER",
    "number": "REAL",
    "decimal": "NUMERIC",
    "boolean": "INTEGER",
    "time": "TEXT",
    "date": "TEXT",
    "json": "TEXT",
}
# Other names may need escapes, which a JSON path does not match in all versions of SQLite.
_PLAIN: Final = re.compile(r"[ !#-\[\]-~]+")
# Without a modifier SQLite accepts the 30th of February.
_DAY: Final = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]"
# Larger numbers are infinite, which no column may hold.
_FINITE: Final = "{} BETWEEN -1.7976931348623157e308 AND 1.7976931348623157e308"
# The next two convert a text in nested steps. Each step takes the max() of its one row: SQLite evaluates an aggregate
# once, but would expand a plain sub-select wherever its columns are used, and extract the value a hundred times. A
# decimal as Python writes it, also as 1E-7.
_DECIMAL: Final = f"""(SELECT CAST(text AS NUMERIC) FROM (
        SELECT max(text) AS text, max(iif(e, substr(text, 1, e - 1), text)) AS digits,
            max(iif(e, ltrim(substr(text, e + 1, 1), '+-') || substr(text, e + 2), '0')) AS power
        FROM (SELECT max(text) AS text, max(instr(lower(text), 'e')) AS e FROM (SELECT {{v}} AS text)))
    WHERE length(text) <= 1000 AND ltrim(substr(digits, 1, 1), '+-') || substr(digits, 2) GLOB '[0-9]*'
        AND substr(digits, 2) NOT GLOB '*[^0-9.]*' AND digits NOT GLOB '*.*.*'
        AND (power GLOB '[0-9]' OR power GLOB '[0-9][0-9]') AND {_FINITE.format("CAST(text AS NUMERIC)")})"""  # noqa: S608 -- no value of a user
# Converted part by part: SQLite itself accepts 24:00, knows no offset without a colon, and rounds up to times that do
# not exist.
_ZONE: Final = """CASE WHEN clock GLOB '*[0-9]Z' THEN 'Z' WHEN clock GLOB '*[0-9][+-][0-9][0-9]:[0-9][0-9]'
    THEN substr(clock, -6) WHEN clock GLOB '*[0-9][+-][0-9][0-9][0-9][0-9]' THEN substr(clock, -5) ELSE '' END"""
_TIME: Final = f"""(SELECT time FROM (
        SELECT max(strftime('%Y-%m-%dT%H:%M:%fZ', day || iif(clock = '', '', 'T' || substr(clock, 1, 8))
            || iif(length(clock) > 9, '.' || substr(clock, 10, 3), '') || substr(zone, 1, 3)
            || iif(length(zone) > 1, ':' || substr(zone, -2), ''))) AS time
        FROM (SELECT max(text) AS text, max(day) AS day, max(zone) AS zone,
                  max(substr(clock, 1, length(clock) - length(zone))) AS clock
              FROM (SELECT max(text) AS text, max(day) AS day, max(clock) AS clock, max({_ZONE}) AS zone
                    FROM (SELECT max(text) AS text, max(substr(text, 1, 10)) AS day, max(substr(text, 12)) AS clock
                          FROM (SELECT {{v}} AS text))))
        WHERE day GLOB '{_DAY}' AND date(day, '+0 days') = day AND (length(text) = 10
            OR substr(text, 11, 1) IN ('T', ' ') AND substr(clock, 1, 5) GLOB '[0-2][0-9]:[0-5][0-9]' AND clock < '24'
                AND (length(clock) = 5 OR substr(clock, 6, 3) GLOB ':[0-5][0-9]' AND (length(clock) = 8
                    OR substr(clock, 9) GLOB '[.,][0-9]*' AND substr(clock, 10) NOT GLOB '*[^0-9]*'))))
    WHERE time >= '0001')"""  # noqa: S608 -- no value of a user
# {v}: the SQL value; {t}: its JSON type; {j}: the value as JSON.
_CONVERTED: Final[dict[Kind, str]] = {
    "text": "CASE WHEN {t} = 'text' THEN {v} END",
    "mixed": "CASE WHEN {t} = 'text' THEN {v} WHEN {t} <> 'null' THEN {j} END",
    "integer": "CASE WHEN {t} = 'integer' AND typeof({v}) = 'integer' THEN {v}"
    " WHEN {t} = 'real' AND {v} >= -9223372036854775808.0 AND {v} < 9223372036854775808.0"
    " AND {v} = CAST({v} AS INTEGER)"
    " THEN CAST({v} AS INTEGER) END",
    "number": f"CASE WHEN {{t}} IN ('integer', 'real') AND {_FINITE.format('{v}')} THEN CAST({{v}} AS REAL) END",
    "decimal": f"CASE WHEN {{t}} IN ('integer', 'real') THEN iif({_FINITE.format('{v}')}, {{v}}, NULL)"
    f" WHEN {{t}} = 'text' THEN {_DECIMAL} END",
    "boolean": "CASE WHEN {t} IN ('true', 'false') THEN {t} = 'true' END",
    "time": f"CASE WHEN {{t}} = 'text' THEN {_TIME} END",
    "date": f"CASE WHEN {{t}} = 'text' AND {{v}} GLOB '{_DAY}' AND {{v}} >= '0001'"
    " AND date({v}, '+0 days') = {v} THEN {v} END",
    "json": "CASE WHEN {t} <> 'null' THEN {j} END",
}


def identifier(name: str) -> str:
    """A quoted name."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A quoted text."""
    return "'" + text.replace("'", "''") + "'"


def selected(view: ItemView, *, where: str) -> str:
    """The query for the rows of a view or table."""
    own = [f"{_OWN[name][0]} AS {identifier(name)}" for name in own_columns(is_table=view.is_table)]
    fields = [f"{_converted(column)} AS {identifier(column.name)}" for column in view.columns]
    columns = ", ".join([*own, *fields, f"{_misfits(view)} AS {identifier(MISFIT)}"])
    return f"SELECT {columns} FROM item WHERE item.spider = {literal(view.spider)}{where}"  # noqa: S608 -- all quoted


def view_statement(view: ItemView) -> str:
    """Creates the view."""
    return f"CREATE VIEW {identifier(view.name)} AS {selected(view, where='')}"


def table_statement(view: ItemView) -> str:
    """Creates the empty table."""
    own = [f"{identifier(name)} {_OWN[name][1]}" for name in own_columns(is_table=True)]
    fields = [column_definition(column) for column in view.columns]
    return f"CREATE TABLE {identifier(view.name)} ({', '.join([*own, *fields, f'{identifier(MISFIT)} TEXT'])})"


def column_definition(column: ViewColumn) -> str:
    """A column with its type."""
    return f"{identifier(column.name)} {_TYPES[column.kind]}"


def index_name(view: ItemView, column: ViewColumn) -> str:
    """The name of the index on a column."""
    return f"index_{_digest(view.name, column.name)}"


def index_statement(view: ItemView, column: ViewColumn) -> str:
    """The index on a column."""
    return f"CREATE INDEX {index_name(view, column)} ON {identifier(view.name)} ({identifier(column.name)})"


def upsert(view: ItemView, *, where: str) -> str:
    """Copies rows of `item` to the table."""
    names = [identifier(name) for name in _table_columns(view)]
    changes = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
    return (
        f"INSERT INTO {identifier(view.name)} ({', '.join(names)}) {selected(view, where=where)}"
        f' ON CONFLICT ("_key") DO UPDATE SET {changes}'
    )


def trigger_names(view: ItemView) -> tuple[str, str, str]:
    """The triggers by which the table follows `item`."""
    digest = _digest(view.name)
    return f"view_{digest}_new", f"view_{digest}_changed", f"view_{digest}_deleted"


def trigger_statements(view: ItemView) -> list[str]:
    """Creates these triggers."""
    new, changed, deleted = trigger_names(view)
    spider = literal(view.spider)
    take = f"BEGIN {upsert(view, where=' AND item.id = NEW.id')}; END"
    return [
        f"CREATE TRIGGER {new} AFTER INSERT ON item WHEN NEW.spider = {spider} {take}",
        f"CREATE TRIGGER {changed} AFTER UPDATE ON item WHEN NEW.spider = {spider} AND (NEW.version <> OLD.version"
        f" OR NEW.url <> OLD.url OR NEW.gone_at IS NOT OLD.gone_at) {take}",
        f"CREATE TRIGGER {deleted} AFTER DELETE ON item WHEN OLD.spider = {spider} BEGIN"  # noqa: S608 -- all quoted
        f' DELETE FROM {identifier(view.name)} WHERE "_key" = OLD.key; END',
    ]


def _table_columns(view: ItemView) -> list[str]:
    return [*own_columns(is_table=True), *(column.name for column in view.columns), MISFIT]


def _converted(column: ViewColumn) -> str:
    return _CONVERTED[column.kind].format(**_parts(column.field))


def _misfits(view: ItemView) -> str:
    pieces = []
    for column in view.columns:
        kind = _parts(column.field)["t"]
        name = literal("," + json.dumps(column.name, ensure_ascii=False))
        pieces.append(f"iif({kind} <> 'null' AND {_converted(column)} IS NULL, {name}, '')")
    return f"nullif('[' || substr({' || '.join(pieces)}, 2) || ']', '[]')"


def _parts(field: str) -> dict[str, str]:
    if _PLAIN.fullmatch(field):
        path = literal(f'$."{field}"')
        return {
            "v": f"json_extract(item.data, {path})",
            "t": f"json_type(item.data, {path})",
            "j": f"item.data -> {path}",
        }
    found = f"FROM json_each(item.data) AS field WHERE field.key = {literal(field)} LIMIT 1"
    as_json = (
        "CASE WHEN field.type IN ('true', 'false') THEN field.type WHEN field.type IN ('object', 'array')"
        " THEN field.value ELSE json_quote(field.value) END"
    )
    return {
        "v": f"(SELECT field.value {found})",
        "t": f"(SELECT field.type {found})",
        "j": f"(SELECT {as_json} {found})",
    }


def _digest(*names: str) -> str:
    return hashlib.sha256("\0".join(names).encode()).hexdigest()[:16]


ITEMS_PER_STEP = 2000
COMBINATIONS = 10_000

_ALL = "SELECT name, spider, is_table, origin, columns, position IS NULL FROM item_view"

Run = Callable[..., Awaitable[Any]]


class SqliteViews:
    """Implements `Views`. `run` runs work on the store's thread."""

    def __init__(self, connection: FileConnection, *, run: Run) -> None:
        self._connection = connection
        self._run = run

    async def all(self) -> list[ItemView]:
        """The views and tables, by name."""
        found: list[ItemView] = await self._run(_all, self._connection)
        return found

    async def make(self, view: ItemView) -> None:
        """Create or change a view."""
        check_view(view)
        await self._run(_make, self._connection, view)

    async def fill(self, name: str) -> AsyncIterator[int]:
        """Copy the existing items into a table, one transaction per step."""
        while (brought := await self._run(_fill_some, self._connection, name)) is not None:
            yield brought

    async def count(self, name: str) -> ViewCount:
        """Count rows and misfits."""
        found: ViewCount = await self._run(_count, self._connection, name)
        return found

    async def drop(self, name: str) -> bool:
        """Drop a view or table."""
        dropped: bool = await self._run(_drop, self._connection, name)
        return dropped


def _all(connection: sqlite3.Connection) -> list[ItemView]:
    return [_view(row) for row in connection.execute(f"{_ALL} ORDER BY name")]


def _find(connection: sqlite3.Connection, name: str) -> ItemView | None:
    # Case-sensitive here, though a file can have only one of `Books` and `books`.
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
        connection.execute(view_statement(view))
        return
    connection.execute(table_statement(view))
    _follow(connection, view)
    for column in view.columns:
        if column.indexed:
            connection.execute(index_statement(view, column))


def _change(connection: sqlite3.Connection, view: ItemView, former: ItemView) -> None:
    """Change a view. A table keeps its rows: new and changed columns are empty until it is filled again."""
    name = identifier(view.name)
    if not view.is_table:
        connection.execute(f"DROP VIEW {name}")
        connection.execute(view_statement(view))
        return
    _let_go(connection, former)
    for column in former.columns:
        if column not in view.columns:
            connection.execute(f"DROP INDEX IF EXISTS {index_name(former, column)}")
    there = {(column.name, column.field, column.kind) for column in former.columns}
    wanted = {(column.name, column.field, column.kind) for column in view.columns}
    for column in former.columns:
        if (column.name, column.field, column.kind) not in wanted:
            _drop_column(connection, view, column)
    for column in view.columns:
        if (column.name, column.field, column.kind) not in there:
            connection.execute(f"ALTER TABLE {name} ADD COLUMN {column_definition(column)}")
        if column.indexed and column not in former.columns:
            connection.execute(index_statement(view, column))
    _follow(connection, view)


def _drop_column(connection: sqlite3.Connection, view: ItemView, column: ViewColumn) -> None:
    table, name = identifier(view.name), identifier(column.name)
    try:
        connection.execute(f"ALTER TABLE {table} DROP COLUMN {name}")
    except sqlite3.OperationalError as error:
        raise UsageError(f"the column {column.name} of {view.name} cannot be dropped: {error}") from None


def _follow(connection: sqlite3.Connection, view: ItemView) -> None:
    for statement in trigger_statements(view):
        connection.execute(statement)


def _let_go(connection: sqlite3.Connection, view: ItemView) -> None:
    for name in trigger_names(view):
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
        statement = upsert(view, where=" AND item.id > ? AND item.id <= ?")
        brought = connection.execute(statement, (start, end)).rowcount
        position = None if end >= last else end
        connection.execute("UPDATE item_view SET position = ? WHERE name = ?", (position, name))
    return brought


def _count(connection: sqlite3.Connection, name: str) -> ViewCount:
    if _find(connection, name) is None:
        raise no_such_view(name)
    query = f'SELECT "_misfit", count(*) FROM {identifier(name)} GROUP BY 1 ORDER BY 2 DESC LIMIT {COMBINATIONS}'  # noqa: S608 -- quoted
    return counted(connection.execute(query))


def _drop(connection: sqlite3.Connection, name: str) -> bool:
    with transaction(connection):
        view = _find(connection, name)
        if view is None:
            return False
        if view.is_table:
            _let_go(connection, view)
        connection.execute(f"DROP {'TABLE' if view.is_table else 'VIEW'} IF EXISTS {identifier(name)}")
        connection.execute("DELETE FROM item_view WHERE name = ?", (name,))
    return True
