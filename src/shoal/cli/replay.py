"""`shoal replay`: runs a changed spider over archived pages, without a request to the site."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.display.counting import Counting, counting_export
from shoal.cli.display.lines import SpiderOutput, one_line
from shoal.cli.display.numbers import count, several
from shoal.cli.display.screen import Screen
from shoal.cli.options import argument_option, check_json_output, json_option, output_option, place_options
from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.crawl.opening import Places
    from shoal.results.replay import Replay, ReplayReport

FAILURES_SHOWN = 20


@click.command(short_help="Run a changed spider over archived pages.")
@click.argument("spider", metavar="FILE[:SPIDER]")
@click.option("--crawl", metavar="ID", help="Which crawl's pages.  [default: the spider's newest]")
@click.option(
    "--limit", type=click.IntRange(0), default=0, metavar="N", help="Stop after this many pages; 0: no limit."
)
@argument_option
@output_option("Also write the items to a .jsonl, .csv, .json or .parquet file.")
@place_options(exists=False, archive=True)
@json_option
def replay(spider: str, *, places: Places, as_json: bool, **options: Any) -> int:
    """Run a changed spider over archived pages: no request goes to the site, items are written again.

    \b
    Example: shoal replay books.py -o books.csv
    """
    from shoal.cli.loop import run
    from shoal.results.export import STDOUT

    check_json_output(options["output"], as_json=as_json)
    screen = Screen(results_to_stderr=options["output"] == STDOUT)
    report = run(_replay(spider, places, screen=screen, **options))
    if as_json:
        screen.json(asdict(report))
    else:
        _show(report, screen)
    return int(report.failed > 0)


async def _replay(
    reference: str, places: Places, *, screen: Screen, crawl: str | None, limit: int, **options: Any
) -> ReplayReport:
    from shoal.cli.crawl_stores import with_archive
    from shoal.crawl.opening import archive_at, store_at
    from shoal.crawl.record import spider_of
    from shoal.results.export import ExportRequest, check_target, export
    from shoal.run.building import replay_for
    from shoal.run.intakes import settings_of
    from shoal.spider.loading import load_spider, made
    from shoal.spider.spider import spider_name
    from shoal.store.base import ItemFilter

    kind, output = load_spider(reference), options["output"]
    if output is not None:
        check_target(output)
    places = await with_archive(places, crawl, spider=spider_name(kind), reference=reference)
    async with archive_at(places.archive or "") as archive:
        # Chosen before the store is opened (which may create it): the archive may not have the crawl.
        chosen = choose_crawl(await archive.crawls(), crawl, spider=spider_name(kind))
        async with store_at(places.store) as items:
            settings = settings_of(kind, {}).values
            again = made(kind, options["arguments"])
            job = replay_for(chosen, again, settings=settings, archive=archive, store=items, say=screen.say)
            report = await _run(job, limit=limit, screen=screen)
            if output is not None:
                which = ItemFilter(spider=spider_of(chosen), crawl=chosen)
                with counting_export(screen, output) as show:
                    await export(items, output, wanted=ExportRequest(which=which), show=show)
    return report


async def _run(job: Replay, *, limit: int, screen: Screen) -> ReplayReport:
    # A spider's prints go to stderr: stdout is for results.
    with Counting.on(screen) as counting, contextlib.redirect_stdout(SpiderOutput(sys.stderr)):
        return await job.run(limit=limit, show=lambda report: counting.show(lambda: _line(report)))


def choose_crawl(crawls: Sequence[str], name: str | None, *, spider: str) -> str:
    """The named crawl of an archive, or the spider's newest."""
    from shoal.cli.crawl_choice import no_archived_crawl

    if name is None:
        numbers = [int(match[1]) for crawl in crawls if (match := re.fullmatch(re.escape(spider) + r"-(\d+)", crawl))]
        if numbers:
            return f"{spider}-{max(numbers)}"
    elif name in crawls:
        return name
    raise UsageError(f"{no_archived_crawl(crawls, name or f'of {spider}')}: choose one with --crawl")


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
