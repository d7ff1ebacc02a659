"""`shoal replay`: a changed spider over archived pages, without touching the site."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.display.counting import Counting
from shoal.cli.display.lines import one_line
from shoal.cli.display.numbers import count, several
from shoal.cli.display.screen import Screen
from shoal.cli.options import DEFAULT_FILE, archive_option, checked_place, json_option
from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.results.replay import ReplayReport
    from shoal.spider import Spider

FAILURES_SHOWN = 20
LISTED = 8


@click.command(short_help="Run a changed spider over archived pages.")
@click.argument("spider", metavar="FILE[:SPIDER]")
@archive_option
@click.option("--crawl", metavar="ID", help="Which crawl's pages.  [default: the spider's newest]")
@click.option("--limit", type=click.IntRange(0), default=0, metavar="N", help="Stop after so many pages; 0: all.")
@click.option("-o", "--output", metavar="FILE", help="Write the items to a .jsonl, .csv, .json or .parquet file, too.")
@click.option(
    "--store",
    metavar="URL",
    default=DEFAULT_FILE,
    show_default=True,
    callback=checked_place,
    help="Where the items go.",
)
@json_option
def replay(spider: str, *, archive: str, as_json: bool, **options: Any) -> int:
    """Run a changed spider over archived pages: the site is not asked, items are stored anew.

    \b
    Example: shoal replay books.py --archive pages/ -o books.csv
    """
    from shoal.cli.loop import run
    from shoal.results.export import STDOUT
    from shoal.spider_file import load_spider

    screen = Screen(results_to_stderr=options["output"] == STDOUT)
    report = run(_replay(load_spider(spider), archive, screen=screen, **options))
    if as_json:
        screen.json(asdict(report))
    else:
        _show(report, screen)
    return int(report.failed > 0)


async def _replay(  # noqa: PLR0913 -- the options of the command
    kind: type[Spider], url: str, *, screen: Screen, store: str, crawl: str | None, limit: int, output: str | None
) -> ReplayReport:
    from shoal.archive import open_archive
    from shoal.crawl import replay_for, settings_of
    from shoal.results.export import Wanted, check_target, export
    from shoal.spider import spider_name
    from shoal.store import open_store
    from shoal.store.base import ItemFilter

    if output is not None:
        check_target(output)
    async with contextlib.AsyncExitStack() as opened:
        archive = await open_archive(url)
        opened.push_async_callback(archive.close)
        meant = choose_crawl(await archive.crawls(), crawl, spider=spider_name(kind))
        items = await open_store(store)
        opened.push_async_callback(items.close)
        job = replay_for(
            meant, kind(), settings=settings_of(kind, {}).values, archive=archive, store=items, say=screen.say
        )
        # What a spider prints is a message: stdout is for results.
        with Counting.on(screen) as counting, contextlib.redirect_stdout(sys.stderr):
            report = await job.run(limit=limit, show=lambda report: counting.show(lambda: _line(report)))
        if output is not None:
            await export(
                items, output, wanted=Wanted(which=ItemFilter(spider=re.sub(r"-\d+$", "", meant), crawl=meant))
            )
        return report


def choose_crawl(crawls: Sequence[str], name: str | None, *, spider: str) -> str:
    """The crawl meant, of those in an archive: the one named, or the spider's newest."""
    if name is None:
        numbers = [int(match[1]) for crawl in crawls if (match := re.fullmatch(re.escape(spider) + r"-(\d+)", crawl))]
        if numbers:
            return f"{spider}-{max(numbers)}"
    elif name in crawls:
        return name
    known = ", ".join(crawls[-LISTED:]) or "nothing yet"
    raise UsageError(f"the archive has no crawl {name or f'of {spider}'}; it has {known}: choose one with --crawl")


def _line(report: ReplayReport) -> str:
    if not report.pages and not report.skipped:
        return f"{report.crawl}: {several(report.total, 'page')} found in the archive"
    return f"{report.crawl}: {count(report.pages)} of {several(report.total, 'page')}, {several(report.items, 'item')}"


def _show(report: ReplayReport, screen: Screen) -> None:
    screen.heading(f"{report.crawl} replayed")
    rows = [
        ("pages", count(report.pages)),
        ("items", count(report.items)),
        ("links", f"{count(report.links)}, not followed" if report.links else ""),
        ("not handled", f"{several(report.skipped, 'page')}, by their status" if report.skipped else ""),
        ("failed", count(report.failed) if report.failed else ""),
    ]
    screen.pairs((name, value) for name, value in rows if value)
    for url, reason in report.failures[:FAILURES_SHOWN]:
        screen.line(f"  {one_line(url)}: {one_line(reason, 200)}")
    if report.failed > FAILURES_SHOWN:
        screen.line(f"  and {count(report.failed - FAILURES_SHOWN)} more")
