"""`shoal store`: prepares a store for crawls, drops or moves old log lines, has its items in columns of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shoal.cli.commands.view_table import view, views
from shoal.cli.display.counting import Counting
from shoal.cli.display.numbers import count, several
from shoal.cli.display.screen import Screen
from shoal.cli.options import json_with, store_option
from shoal.errors import UsageError
from shoal.processes.result_places import check_store_exists
from shoal.secrecy import masked

if TYPE_CHECKING:
    from shoal.settings import Settings
    from shoal.store.base import MovedPart, Store


@click.group(short_help="Make a store ready, drop its old lines, make views of its items.")
def store() -> None:
    """Make a store ready, drop its old lines, make views of its items.

    \b
    Example: shoal store init --store results.db
    """


store.add_command(view)
store.add_command(views)


@store.command(short_help="Create a store, or bring it up to date.")
@store_option
@json_with("store", "ready")
def init(store: str, *, as_json: bool) -> None:
    """Create a store, or bring it up to date. Crawls do so by themselves; a database's owner may want to do it first.

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


@store.command(short_help="Drop lines of the fetch log that are older than `retention`, or move them.")
@store_option
@click.option("--retention", metavar="TIME", help="How long lines are kept, such as 90d.  [default: the setting]")
@click.option(
    "--retention-archive",
    "archive",
    metavar="URL",
    help="Move whole weeks to this archive, instead of dropping lines.  [default: the setting]",
)
@json_with("store", "retention_seconds", "dropped", "moved", "archive")
def tidy(store: str, *, retention: str | None, archive: str | None, as_json: bool) -> None:
    """Drop lines of the fetch log that are older than `retention`. Items stay.

    With an archive whole weeks are moved there as Parquet, and dropped when they are there.

    \b
    Example: shoal store tidy --retention 90d
    Example: shoal store tidy --retention 90d --retention-archive s3://bucket/log
    """
    from shoal.cli.loop import run
    from shoal.crawl import settings_of
    from shoal.setting_values import parse_duration
    from shoal.spider import Spider

    flags = {"retention": retention, "retention_archive": archive}
    given = {name: value for name, value in flags.items() if value is not None}
    settings = settings_of(Spider, given).values
    seconds = parse_duration(settings.retention)
    if not seconds:
        raise UsageError("nothing says how long log lines are kept: give --retention 90d, or set `retention`")
    check_store_exists(store)
    screen, to = Screen(), settings.retention_archive
    lines = run(_tidy(store, settings, screen=screen))
    if as_json:
        done = {"dropped": 0, "moved": lines, "archive": to} if to else {"dropped": lines, "moved": 0, "archive": None}
        screen.json({"store": masked(store), "retention_seconds": seconds, **done})
        return
    screen.line(
        f"{several(lines, 'log line')} moved from {masked(store)} to {to}"
        if to
        else f"{several(lines, 'log line')} dropped from {masked(store)}"
    )


@store.command(short_help="List the weeks of the fetch log that were moved to an archive.")
@store_option
@json_with("week", "archive", "lines", "files", "moved_at", "path")
def weeks(*, store: str, as_json: bool) -> None:
    """List the weeks of the fetch log that `retention_archive` has moved, and where their Parquet files are.

    \b
    Example: shoal store weeks
    """
    from shoal.cli.loop import run

    check_store_exists(store)
    found, screen = run(_weeks(store)), Screen()
    if as_json:
        screen.json(found)
    elif not found:
        screen.say("no week of the log was moved: `shoal store tidy --retention 90d --retention-archive URL` does it")
    else:
        rows = [(one["week"], count(one["lines"]), count(one["files"]), one["path"]) for one in found]
        screen.table(("week", "lines", "files", "where"), rows)


async def _init(url: str) -> None:
    from shoal.processes.opening import store_at

    # To open a store creates its tables, or brings them up to date.
    async with store_at(url):
        pass


async def _tidy(url: str, settings: Settings, *, screen: Screen) -> int:
    from shoal.processes.opening import store_at
    from shoal.results.log_files import check_log_archive, move_log
    from shoal.setting_values import parse_duration

    retention, archive = parse_duration(settings.retention), settings.retention_archive

    async def move(store: Store) -> int:
        return sum([lines async for lines in move_log(store, archive, retention=retention, say=screen.say)])

    await check_log_archive(settings, store=url)
    async with store_at(url) as store:
        with Counting.on(screen) as counting:
            if archive:
                return await counting.during(move(store), "moving old weeks of the log")
            return await counting.during(store.tidy(retention=retention), "dropping old log lines")


async def _weeks(url: str) -> list[dict[str, Any]]:
    from shoal.processes.opening import store_at

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
