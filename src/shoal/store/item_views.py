"""SQL views and tables with a column per field of a spider's items: their definition, and the rules that all stores
share.

A value that does not fit the type of its column is NULL, and `_misfit` names the column: no value is lost in silence.
Field names come from web pages: every name is quoted where it is used.

Tables are kept up to date by triggers, in the transaction of the item's write, so that merging, freshness and deletion
are decided once. A conversion must never raise: it would make the item unwritable."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, Literal, Protocol

import msgspec

from shoal.errors import UsageError

# text: a JSON string. mixed: any value as text. decimal: a number or its text, as Decimal is stored. time, date: ISO
# 8601 text; a time without a zone is UTC. json: any value.
Kind = Literal["text", "mixed", "integer", "number", "decimal", "boolean", "time", "date", "json"]

# A PostgreSQL row with this many long texts, stored outside of the row, still fits into a disk page.
MAX_COLUMNS: Final = 300
NAME_BYTES: Final = 63
MISFIT: Final = "_misfit"
# Every view and table has these columns. A field with one of these names gets another column name.
OWN_COLUMNS: Final = (
    "_key",
    "_url",
    "_crawl",
    "_first_seen",
    "_last_seen",
    "_changed_at",
    "_version",
    "_gone_at",
    MISFIT,
)
# These change with every visit: a table that had them would be rewritten each time.
ONLY_IN_VIEWS: Final = frozenset({"_crawl", "_last_seen"})
# Names of this form are used by the log's weeks and by the database itself.
_RESERVED: Final = ("fetches_", "sqlite_", "pg_")


class ViewColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A field of the items as a column."""

    field: str
    name: str
    kind: Kind
    indexed: bool = False


class ItemView(msgspec.Struct, frozen=True, kw_only=True):
    """A view or table of a spider's items. `origin`: where its columns were taken from, for people. `filled`: a table
    has all items that existed when it was made; newer items are always in it."""

    name: str
    spider: str
    columns: tuple[ViewColumn, ...]
    is_table: bool = False
    origin: str = ""
    filled: bool = True


class ViewCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows a view has, how many rows have a misfit, and the number of misfits by column."""

    rows: int
    misfits: int
    by_column: dict[str, int]


class Views(Protocol):
    """The item views and tables of a store."""

    async def all(self) -> list[ItemView]:
        """All views and tables, by name."""

    async def make(self, view: ItemView) -> None:
        """Create the view, or change the view of this name and kind to these columns, in one transaction. A table
        follows the items from then on; `fill` adds the older items. Making the same view again changes nothing. Refuses
        a name that is in use."""

    def fill(self, name: str) -> AsyncIterator[int]:
        """Copy the existing items into a table, in batches, yielding the size of each; ends at once when the table is
        filled. After a crash, call again."""

    async def count(self, name: str) -> ViewCount:
        """Count rows and misfits."""

    async def drop(self, name: str) -> bool:
        """Drop a view or table; returns whether it existed. The items stay."""


def named_columns(
    fields: Iterable[tuple[str, Kind]], *, indexed: Sequence[str] = (), former: Sequence[ViewColumn] = ()
) -> tuple[ViewColumn, ...]:
    """A column for each field. Names differ also without regard to case. A field that had a column keeps its name."""
    fields = list(fields)
    chosen = {name for name, _ in fields}
    names = {column.field: column.name for column in former if column.field in chosen}
    taken = {*(name.casefold() for name in names.values()), *OWN_COLUMNS}
    for field, _ in fields:
        if field not in names:
            names[field] = _free_name(field, taken)
            taken.add(names[field].casefold())
    return tuple(
        ViewColumn(field=field, name=names[field], kind=kind, indexed=field in indexed) for field, kind in fields
    )


def _free_name(field: str, taken: set[str]) -> str:
    plain = "".join(letter if letter.isprintable() else "_" for letter in field) or "_"
    number, name = 1, _cut(plain, NAME_BYTES)
    while name.casefold() in taken:
        number += 1
        ending = f"_{number}"
        name = _cut(plain, NAME_BYTES - len(ending)) + ending
    return name


def _cut(text: str, octets: int) -> str:
    return text.encode()[:octets].decode(errors="ignore")


def in_former_order(columns: Sequence[ViewColumn], former: Sequence[ViewColumn]) -> tuple[ViewColumn, ...]:
    """The columns: former columns first, in their former order, then new ones."""
    position = {column.name: index for index, column in enumerate(former)}
    return tuple(sorted(columns, key=lambda column: position.get(column.name, len(position))))


def check_view(view: ItemView) -> None:
    """Refuse a view that no store can have."""
    name = view.name
    if not name or not name.isprintable() or len(name.encode()) > NAME_BYTES or name.lower().startswith(_RESERVED):
        raise UsageError(f"{name[:100]!r} cannot be the name of a view: give another one with --name")
    if not view.columns:
        raise UsageError(f"the items of {view.spider} have no fields: there is nothing to make columns of")
    if len(view.columns) > MAX_COLUMNS:
        raise UsageError(
            f"{len(view.columns)} columns are more than the {MAX_COLUMNS} that a view may have: name fewer"
        )
    for column in view.columns:
        if column.indexed and not view.is_table:
            raise UsageError("an index needs a table: add --table, or leave out --index")
        if column.indexed and column.kind == "json":
            raise UsageError(
                f"{column.field!r} holds lists or objects, which cannot be indexed: leave it out of --index"
            )


def check_former(view: ItemView, former: ItemView) -> None:
    """Refuse to change the spider or the kind of a view."""
    drop = f"drop it first (shoal store view {view.spider} --name {view.name} --drop), or give another --name"
    if former.spider != view.spider:
        raise UsageError(f"{view.name} is of the spider {former.spider}, not of {view.spider}: {drop}")
    if former.is_table != view.is_table:
        raise UsageError(f"{view.name} is a {'table' if former.is_table else 'view'} already: {drop}")


def name_is_taken(name: str) -> UsageError:
    """The error for a name that is in use."""
    return UsageError(f"the store has something else that is named {name}: give another name with --name")


def no_such_view(name: str) -> UsageError:
    """The error for a view that does not exist."""
    return UsageError(f"there is no view {name!r}: `shoal store views` lists them")


def own_columns(*, is_table: bool) -> tuple[str, ...]:
    """The columns that do not come from fields, without `_misfit`."""
    return tuple(name for name in OWN_COLUMNS if name != MISFIT and not (is_table and name in ONLY_IN_VIEWS))


def counted(rows: Iterable[tuple[str | None, int]]) -> ViewCount:
    """A ViewCount from values of `_misfit` with their numbers."""
    total = misfits = 0
    by_column: dict[str, int] = {}
    for names, number in rows:
        total += number
        if names is not None:
            misfits += number
            for name in msgspec.json.decode(names, type=list[str]):
                by_column[name] = by_column.get(name, 0) + number
    return ViewCount(rows=total, misfits=misfits, by_column=by_column)
