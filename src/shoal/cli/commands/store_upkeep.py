"""`shoal store`: prepares a store for crawls, drops old log lines, and has its items in columns of their own."""

from __future__ import annotations

import click

from shoal.cli.commands.view_table import view, views
from shoal.cli.display.counting import Counting
from shoal.cli.display.numbers import several
from shoal.cli.display.screen import Screen
from shoal.cli.options import json_with, store_option
from shoal.errors import UsageError
from shoal.processes.result_places import check_store_exists
from shoal.secrecy import masked


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


@store.command(short_help="Drop lines of the fetch log that are older than `retention`.")
@store_option
@click.option("--retention", metavar="TIME", help="How long lines are kept, such as 90d.  [default: the setting]")
@json_with("store", "retention_seconds", "dropped")
def tidy(store: str, *, retention: str | None, as_json: bool) -> None:
    """Drop lines of the fetch log that are older than `retention`. Items stay.

    \b
    Example: shoal store tidy --retention 90d
    """
    from shoal.cli.loop import run
    from shoal.crawl import settings_of
    from shoal.setting_values import parse_duration
    from shoal.spider import Spider

    seconds = parse_duration(retention or settings_of(Spider, {}).values.retention)
    if not seconds:
        raise UsageError("nothing says how long log lines are kept: give --retention 90d, or set `retention`")
    check_store_exists(store)
    screen = Screen()
    dropped = run(_tidy(store, seconds, screen=screen))
    if as_json:
        screen.json({"store": masked(store), "retention_seconds": seconds, "dropped": dropped})
        return
    screen.line(f"{several(dropped, 'log line')} dropped from {masked(store)}")


async def _init(url: str) -> None:
    from shoal.processes.opening import store_at

    # To open a store creates its tables, or brings them up to date.
    async with store_at(url):
        pass


async def _tidy(url: str, seconds: float, *, screen: Screen) -> int:
    from shoal.processes.opening import store_at

    async with store_at(url) as store:
        with Counting.on(screen) as counting:
            return await counting.during(store.tidy(retention=seconds), "dropping old log lines")
