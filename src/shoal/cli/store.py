"""`shoal store`: creates a store, removes or moves old log lines, makes SQL views and tables of items."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click
import msgspec

from shoal.cli.display.counting import Counting
from shoal.cli.display.numbers import count, several
from shoal.cli.display.screen import Screen
from shoal.cli.options import json_with, store_option
from shoal.crawl.places import check_store_exists
from shoal.errors import UsageError
from shoal.text.near_names import did_you_mean
from shoal.text.secrets import masked

if TYPE_CHECKING:
    from shoal.settings.table import Settings
    from shoal.store.base import MovedPart, Store
    from shoal.store.item_views import ItemView, Kind, ViewColumn, ViewCount

NAMED = 8
MOST_READ = 10_000
PLAIN = re.compile(r"[a-z_][a-z0-9_]*")


class ViewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The view to make. Without a `type` its columns are the fields found in up to `sample` items."""

    spider: str
    name: str
    type: str | None = None
    is_table: bool = False
    indexed: tuple[str, ...] = ()
    sample: int = 0


@click.command(short_help="Make a SQL view or a table of a spider's items.")
@click.argument("spider")
@click.option(
    "--type", "type_", metavar="FILE:CLASS", help="A class, such as a dataclass, whose fields are the columns."
)
@click.option(
    "--table", "is_table", is_flag=True, help="Make a table that is updated with the items, instead of a view."
)
@click.option("--index", "indexed", metavar="FIELD", multiple=True, help="Index this field of the table; repeatable.")
@click.option("--name", metavar="NAME", help="The name of the view.  [default: the spider's]")
@click.option(
    "--sample",
    metavar="N",
    type=click.IntRange(0),
    default=200_000,
    show_default=True,
    help="Without --type: read at most so many items; 0: all.",
)
@click.option("--drop", is_flag=True, help="Drop the view or the table. The items are kept.")
@store_option
@json_with("name", "spider", "table", "from", "columns", "changes", "rows", "misfits", "dropped")
def view(
    spider: str, *, store: str, type_: str | None, name: str | None, drop: bool, as_json: bool, **more: Any
) -> None:
    """Make a SQL view of a spider's items with a column for each field, or update it to the fields there are now.

    The columns are the fields of a class, or the fields found in the items. A value that does not fit its column is
    NULL, and _misfit names the column. With --table it is a table, written in the same transaction as the items.

    \b
    Example: shoal store view books && shoal sql "SELECT title, price FROM books WHERE price < 10"
    Example: shoal store view books --type shop.py:Book --table --index price
    """
    from shoal.cli.loop import run

    request = ViewRequest(spider=spider, name=name or spider, type=type_, **more)
    check_store_exists(store)
    run(_drop(store, request, as_json=as_json) if drop else _make(store, request, as_json=as_json))


@click.command(short_help="List the views and tables of items.")
@store_option
@json_with("name", "spider", "table", "filled", "from", "columns")
def views(*, store: str, as_json: bool) -> None:
    """List the views and tables made by `shoal store view`.

    \b
    Example: shoal store views
    """
    from shoal.cli.loop import run

    check_store_exists(store)
    run(_list(store, as_json=as_json))


async def _list(url: str, *, as_json: bool) -> None:
    from shoal.crawl.opening import store_at

    async with store_at(url) as store:
        found = await store.views.all()
    screen = Screen()
    if as_json:
        screen.json([_document(one) for one in found])
    elif not found:
        screen.say("there are no views: `shoal store view SPIDER` makes one")
    else:
        rows = [(one.name, one.spider, _what(one), one.origin, _columns_text(one.columns)) for one in found]
        screen.table(("name", "spider", "what", "from", "columns"), rows)


async def _drop(url: str, request: ViewRequest, *, as_json: bool) -> None:
    from shoal.crawl.opening import store_at

    if request.type is not None or request.indexed:
        raise UsageError("--drop drops the whole view: leave out --type and --index")
    async with store_at(url) as store:
        known = {one.name: one for one in await store.views.all()}
        if request.name not in known:
            hint = did_you_mean(request.name, known, otherwise="`shoal store views` lists them")
            raise UsageError(f"there is no view {request.name!r}: {hint}")
        found = known[request.name]
        if found.spider != request.spider:
            raise UsageError(f"{request.name} is of the spider {found.spider}, not of {request.spider}")
        if request.is_table and not found.is_table:
            raise UsageError(f"{request.name} is a view, not a table: leave out --table")
        await store.views.drop(request.name)
    screen = Screen()
    if as_json:
        screen.json({"name": request.name, "spider": request.spider, "dropped": True})
    else:
        screen.line(f"{request.name} is dropped; the items of {request.spider} are kept")


async def _make(url: str, request: ViewRequest, *, as_json: bool) -> None:
    from shoal.crawl.opening import store_at

    screen = Screen()
    async with store_at(url) as store:
        fields, origin = await _fields(store, request, screen)
        former = next((one for one in await store.views.all() if one.name == request.name), None)
        made = _view(request, fields, origin, former)
        await store.views.make(made)
        if made.is_table:
            await _fill(store, made.name, screen)
        counted = await store.views.count(made.name)
        (now,) = [one for one in await store.views.all() if one.name == made.name]
    _show(now, former, counted, screen, as_json=as_json)


async def _fields(store: Store, request: ViewRequest, screen: Screen) -> tuple[tuple[tuple[str, Kind], ...], str]:
    """The columns, and where they come from."""
    from shoal.results.item_columns import fields_of_class, fields_seen

    if request.type is not None:
        fields = fields_of_class(request.type)
        await _warn_of_missing_fields(store, request, [field for field, _ in fields], screen)
        return fields, request.type
    seen = await fields_seen(store, request.spider, sample=request.sample)
    if not seen.looked:
        advice = await _spider_meant(store, request.spider) or "give --type FILE:CLASS"
        raise UsageError(f"there is no item of the spider {request.spider!r} to read fields from: {advice}")
    if seen.left_out:
        screen.say(f"{count(seen.left_out)} fields that few items have are left out: --type names the columns")
    if seen.looked == seen.items:
        return seen.fields, f"the fields of {several(seen.looked, 'item')}"
    screen.say(
        f"the types come from {count(seen.looked)} of {count(seen.items)} items: --sample 0 reads all; _misfit names"
        " values that do not fit"
    )
    return seen.fields, f"the fields of {count(seen.looked)} of {count(seen.items)} items"


async def _warn_of_missing_fields(store: Store, request: ViewRequest, fields: list[str], screen: Screen) -> None:
    """Warn if no item has a field of the class: the wrong class makes empty columns."""
    from shoal.results.item_columns import fields_missing

    missing, looked = await fields_missing(store, request.spider, fields, sample=MOST_READ)
    if not looked:
        advice = await _spider_meant(store, request.spider)
        said = f"warning: there is no item of the spider {request.spider!r} so far"
        screen.say(f"{said}: {advice}" if advice else said)
    elif missing:
        named = ", ".join(missing[:NAMED]) + (" …" if len(missing) > NAMED else "")
        of = f"{several(looked, 'item')} read"
        screen.say(f"warning: none of the {of} has the fields {named} of {request.type}")


async def _spider_meant(store: Store, spider: str) -> str:
    from shoal.results.item_columns import spiders_with_items

    known = await spiders_with_items(store)
    some = ", ".join(known[:NAMED]) + (" …" if len(known) > NAMED else "")
    return did_you_mean(spider, known, otherwise=f"the store has items of {some}" if known else "")


def _view(request: ViewRequest, fields: tuple[tuple[str, Kind], ...], origin: str, former: ItemView | None) -> ItemView:
    from shoal.store.item_views import ItemView, named_columns

    names = [field for field, _ in fields]
    for field in request.indexed:
        if field not in names:
            hint = did_you_mean(field, names, otherwise=f"there are {', '.join(names[:NAMED])}")
            raise UsageError(f"--index {field}: there is no such field; {hint}")
    columns = named_columns(fields, indexed=request.indexed, former=former.columns if former else ())
    return ItemView(name=request.name, spider=request.spider, columns=columns, is_table=request.is_table, origin=origin)


async def _fill(store: Store, name: str, screen: Screen) -> None:
    from shoal.cli.display.counting import Counting

    async def fill() -> int:
        return sum([brought async for brought in store.views.fill(name)])

    with Counting.on(screen) as counting:
        await counting.during(fill(), f"filling {name}")


def _show(view: ItemView, former: ItemView | None, counted: ViewCount, screen: Screen, *, as_json: bool) -> None:
    changes = _changes(view, former)
    if as_json:
        misfits = {"items": counted.misfits, "by_column": counted.by_column}
        screen.json({**_document(view), "changes": changes, "rows": counted.rows, "misfits": misfits})
        return
    done = "is created" if former is None else "has changed" if changes else "is unchanged"
    screen.line(
        f"{_what(view)} {view.name} {done}: {several(counted.rows, 'item')}, {several(len(view.columns), 'column')}"
    )
    for change in changes if former is not None else [f"{_column_text(column)}" for column in view.columns]:
        screen.line(f"  {change}")
    if not PLAIN.fullmatch(view.name):
        screen.say(f"its name needs quotes in SQL: SELECT * FROM {_quoted(view.name)}")  # noqa: S608 -- shown
    if counted.misfits:
        by_size = sorted(counted.by_column.items(), key=lambda pair: pair[1], reverse=True)
        where = ", ".join(f"{name} ({count(number)})" for name, number in by_size[:NAMED])
        screen.line(f"{several(counted.misfits, 'item')} with a value that does not fit, which is NULL here: {where}")
        screen.say(
            f"_misfit names the columns: SELECT _key, _misfit FROM {_quoted(view.name)} WHERE _misfit IS NOT NULL"  # noqa: S608 -- shown
        )


def _changes(view: ItemView, former: ItemView | None) -> list[str]:
    if former is None:
        return []
    before = {column.name: column for column in former.columns}
    after = {column.name: column for column in view.columns}
    lines = [f"new: {_column_text(column)}" for name, column in after.items() if name not in before]
    lines += [f"gone: {name}" for name in before if name not in after]
    for name, column in after.items():
        if name in before and before[name] != column:
            lines.append(f"now: {_column_text(column)} (was {_kind_text(before[name])})")
    return lines


def _what(view: ItemView) -> str:
    if not view.is_table:
        return "view"
    return "table" if view.filled else "table, not filled yet"


def _column_text(column: ViewColumn) -> str:
    field = "" if column.name == column.field else f" (the field {column.field!r})"
    return f"{column.name} {_kind_text(column)}{field}"


def _kind_text(column: ViewColumn) -> str:
    return f"{column.kind}, indexed" if column.indexed else column.kind


def _columns_text(columns: tuple[ViewColumn, ...]) -> str:
    more = f" and {len(columns) - NAMED} more" if len(columns) > NAMED else ""
    return ", ".join(f"{column.name} {column.kind}" for column in columns[:NAMED]) + more


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _document(view: ItemView) -> dict[str, Any]:
    return {
        "name": view.name,
        "spider": view.spider,
        "table": view.is_table,
        "filled": view.filled,
        "from": view.origin,
        "columns": [msgspec.structs.asdict(column) for column in view.columns],
    }


@click.group(short_help="Create a store, remove its old lines, make views of its items.")
def store() -> None:
    """Create a store, remove its old lines, make views of its items.

    \b
    Example: shoal store init --store results.db
    """


store.add_command(view)
store.add_command(views)


@store.command(short_help="Create a store, or update its tables.")
@store_option
@json_with("store", "ready")
def init(store: str, *, as_json: bool) -> None:
    """Create a store, or update its tables. Crawls do it by themselves; a database's owner may do it first.

    \b
    Example: shoal store init --store postgresql://me@db.example/results
    """
    from shoal.cli.loop import run

    run(_init(store))
    screen = Screen()
    if as_json:
        screen.json({"store": masked(store), "ready": True})
        return
    screen.line(f"{masked(store)} is ready")


@store.command(short_help="Remove or move what is older than `retention` and `versions_retention`.")
@store_option
@click.option("--retention", metavar="TIME", help="How long log lines are kept, such as 90d.  [default: the setting]")
@click.option(
    "--retention-archive",
    "archive",
    metavar="URL",
    help="Move whole weeks to this archive instead of deleting lines.  [default: the setting]",
)
@click.option(
    "--versions-retention",
    "versions",
    metavar="TIME",
    help="How long replaced versions of items are kept.  [default: the setting]",
)
@json_with("store", "retention_seconds", "dropped", "moved", "archive", "versions_seconds", "versions_dropped")
def tidy(store: str, *, retention: str | None, archive: str | None, versions: str | None, as_json: bool) -> None:
    """Delete lines of the fetch log that are older than `retention`. Items are kept.

    With an archive, whole weeks are moved there as Parquet files. Versions of items that were replaced longer ago than
    `versions_retention` are deleted too, for all spiders.

    \b
    Example: shoal store tidy --retention 90d
    Example: shoal store tidy --retention 90d --retention-archive s3://bucket/log
    """
    from shoal.cli.loop import run
    from shoal.run.intakes import settings_of
    from shoal.settings.values import parse_duration
    from shoal.spider.spider import Spider

    flags = {"retention": retention, "retention_archive": archive, "versions_retention": versions}
    settings = settings_of(Spider, {name: value for name, value in flags.items() if value is not None}).values
    if not parse_duration(settings.retention) and not parse_duration(settings.versions_retention):
        raise UsageError(
            "retention is not set: give --retention 90d, or set `retention`; for versions of items --versions-retention"
            " 365d"
        )
    check_store_exists(store)
    screen = Screen()
    done = run(_tidy(store, settings, screen=screen))
    if as_json:
        screen.json({"store": masked(store), **done.document(settings)})
        return
    for line in done.lines(settings, masked(store)):
        screen.line(line)


@store.command(short_help="List the weeks of the fetch log that were moved to an archive.")
@store_option
@json_with("week", "archive", "lines", "files", "moved_at", "path")
def weeks(*, store: str, as_json: bool) -> None:
    """List the weeks of the fetch log that were moved to `retention_archive`, and where their Parquet files are.

    \b
    Example: shoal store weeks
    """
    from shoal.cli.loop import run

    check_store_exists(store)
    found, screen = run(_weeks(store)), Screen()
    if as_json:
        screen.json(found)
    elif not found:
        screen.say(
            "no week of the log was moved: `shoal store tidy --retention 90d --retention-archive URL` moves them"
        )
    else:
        rows = [(one["week"], count(one["lines"]), count(one["files"]), one["path"]) for one in found]
        screen.table(("week", "lines", "files", "where"), rows)


async def _init(url: str) -> None:
    from shoal.crawl.opening import store_at

    # Opening a store creates or updates its tables.
    async with store_at(url):
        pass


class Tidied(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed from a store. `to`: the archive that has the log lines now."""

    log_lines: int
    versions: int
    to: str

    def document(self, settings: Settings) -> dict[str, Any]:
        """For scripts."""
        from shoal.settings.values import parse_duration

        return {
            "retention_seconds": parse_duration(settings.retention),
            "dropped": 0 if self.to else self.log_lines,
            "moved": self.log_lines if self.to else 0,
            "archive": self.to or None,
            "versions_seconds": parse_duration(settings.versions_retention),
            "versions_dropped": self.versions,
        }

    def lines(self, settings: Settings, store: str) -> list[str]:
        """For people: a line per setting in force."""
        left = several(self.log_lines, "log line")
        of_log = f"{left} moved from {store} to {self.to}" if self.to else f"{left} dropped from {store}"
        of_items = f"{several(self.versions, 'version')} of items dropped from {store}"
        return [of_log] * bool(settings.retention) + [of_items] * bool(settings.versions_retention)


async def _tidy(url: str, settings: Settings, *, screen: Screen) -> Tidied:
    from shoal.crawl.opening import store_at
    from shoal.results.log_files import check_log_archive, move_log
    from shoal.settings.values import parse_duration

    retention, archive = parse_duration(settings.retention), settings.retention_archive
    versions = parse_duration(settings.versions_retention)

    async def move(store: Store) -> int:
        return sum([lines async for lines in move_log(store, archive, retention=retention, say=screen.say)])

    gone = former = 0
    await check_log_archive(settings, store=url)
    async with store_at(url) as store:
        with Counting.on(screen) as counting:
            if archive:
                gone = await counting.during(move(store), "moving old weeks of the log")
            elif retention:
                gone = await counting.during(store.tidy(retention=retention), "dropping old log lines")
            if versions:
                dropping = store.tidy_versions(None, retention=versions)
                former = await counting.during(dropping, "dropping old versions of items")
    return Tidied(log_lines=gone, versions=former, to=archive)


async def _weeks(url: str) -> list[dict[str, Any]]:
    from shoal.crawl.opening import store_at

    async with store_at(url) as store:
        parts = await store.log_weeks.moved()
    weeks: dict[tuple[str, str], list[MovedPart]] = {}
    for part in parts:
        weeks.setdefault((part.week, part.archive), []).append(part)
    return [
        {
            "week": week,
            "archive": archive,
            "lines": sum(part.lines for part in some),
            "files": len(some),
            "moved_at": max(part.moved_at for part in some),
            "path": f"{archive.partition('?')[0].rstrip('/')}/{some[0].name.rpartition('/')[0]}",
        }
        for (week, archive), some in weeks.items()
    ]
