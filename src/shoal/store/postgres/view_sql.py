"""The statements of views and tables of items in PostgreSQL. Pure functions; every name and text is quoted here."""

from __future__ import annotations

import hashlib
import json
from typing import Final

from shoal.store.item_views import MISFIT, ItemView, Kind, ViewColumn, own_columns

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
# A text may be longer than a btree takes: an item that has one must stay writable.
_HASHED: Final = ("text", "mixed", "decimal")
_GRANTED: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")


def identifier(name: str) -> str:
    """A name in a statement."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text in a statement, whatever the server takes a backslash for."""
    quoted = text.replace("'", "''")
    return "E'" + quoted.replace("\\", "\\\\") + "'" if "\\" in text else f"'{quoted}'"


def selected(view: ItemView, *, source: str) -> str:
    """The query that gives the rows of a view or a table from rows like those of `items`."""
    own = [f"item.{_OWN[name][0]} AS {identifier(name)}" for name in own_columns(is_table=view.is_table)]
    names = [f"typed.{identifier(column.name)}" for column in view.columns]
    fields = [f"item_{column.kind}({_value(column)}) AS {identifier(column.name)}" for column in view.columns]
    columns = ", ".join([*own, *names, f"{_misfits(view)} AS {identifier(MISFIT)}"])
    return f"SELECT {columns} FROM {source} AS item CROSS JOIN LATERAL (SELECT {', '.join(fields)}) AS typed"  # noqa: S608 -- all quoted


def view_statement(view: ItemView) -> str:
    """The view, made or replaced."""
    rows = selected(view, source="items")
    return f"CREATE OR REPLACE VIEW {identifier(view.name)} AS {rows} WHERE item.spider = {literal(view.spider)}"


def table_statement(view: ItemView) -> str:
    """The table, still empty."""
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
    """Brings the next $2 items after the key $1 into the table; gives how many, and the last key. They are locked, in
    the order in which writers lock them: no change comes in between."""
    return (
        "WITH present AS MATERIALIZED (SELECT key, url, first_seen, changed_at, version, gone_at,"  # noqa: S608 -- quoted
        f" data || '{{}}' AS data FROM items WHERE spider = {literal(view.spider)} AND key > $1"
        f" ORDER BY key LIMIT $2 FOR UPDATE), brought AS ({_upsert(view, source='present')})"
        " SELECT count(*), max(key) FROM present"
    )


def function_statement(view: ItemView) -> str:
    """The function by which the table follows `items`, in the transaction of each write: made, or replaced."""
    # The data is read once, however many columns are taken from it.
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
    # With the rights of its owner: who may write items may not be allowed to write here.
    return (
        f"CREATE OR REPLACE FUNCTION {function_name(view)}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER"
        f" SET search_path FROM CURRENT AS {tag}{body}{tag}"
    )


def trigger_statements(view: ItemView) -> list[str]:
    """The triggers that call the function."""
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
    """The names of the triggers by which the table follows `items`."""
    digest = _digest(view.name)
    return f"view_{digest}_new", f"view_{digest}_changed", f"view_{digest}_deleted"


def function_name(view: ItemView) -> str:
    """The name of the function that these triggers call."""
    return f"view_{_digest(view.name)}"


def grant_statement(view: ItemView, privilege: str, role: str | None) -> str:
    """Grants what was granted on the former view of this name; no role: to everybody."""
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
