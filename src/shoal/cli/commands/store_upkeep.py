"""`shoal store`: prepares a store for crawls, drops or moves old log lines, has its items in columns of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from shoal.cli.commands.view_table import view, views
from shoal.cli.display.counting import Counting
from shoal.cli.display.numbers import count, several
from shoal.cli.display.screen import Screen
from shoal.cli.options import json_with, store_option
from shoal.crawl.places import check_store_exists
from shoal.errors import UsageError
from shoal.text.secrets import masked

if TYPE_CHECKING:
    from shoal.settings.table import Settings
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


@store.command(short_help="Drop what is older than `retention` and `versions_retention`, or move it.")
@store_option
@click.option("--retention", metavar="TIME", help="How long log lines are kept, such as 90d.  [default: the setting]")
@click.option(
    "--retention-archive",
    "archive",
    metavar="URL",
    help="Move whole weeks to this archive, instead of dropping lines.  [default: the setting]",
)
@click.option(
    "--versions-retention",
    "versions",
    metavar="TIME",
    help="How long kept versions of items stay after they were replaced.  [default: the setting]",
)
@json_with("store", "retention_seconds", "dropped", "moved", "archive", "versions_seconds", "versions_dropped")
def tidy(store: str, *, retention: str | None, archive: str | None, versions: str | None, as_json: bool) -> None:
    """Drop lines of the fetch log that are older than `retention`. Items stay.

    With an archive whole weeks are moved there as Parquet, and dropped when they are there. Versions of items that were
    replaced longer ago than `versions_retention` go as well, those of all spiders.

    \b
    Example: shoal store tidy --retention 90d
    Example: shoal store tidy --retention 90d --retention-archive s3://bucket/log
    """
    from shoal.cli.loop import run
    from shoal.run import settings_of
    from shoal.settings.values import parse_duration
    from shoal.spider.spider import Spider

    flags = {"retention": retention, "retention_archive": archive, "versions_retention": versions}
    settings = settings_of(Spider, {name: value for name, value in flags.items() if value is not None}).values
    if not parse_duration(settings.retention) and not parse_duration(settings.versions_retention):
        raise UsageError(
            "nothing says how long log lines are kept: give --retention 90d, or set `retention`; for versions of items"
            " --versions-retention 365d"
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
    from shoal.crawl.opening import store_at

    # To open a store creates its tables, or brings them up to date.
    async with store_at(url):
        pass


class Tidied(msgspec.Struct, frozen=True, kw_only=True):
    """How much has left a store. `to`: the archive that has the log lines now."""

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
        """For people: what was asked for."""
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
