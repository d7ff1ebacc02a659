"""`shoal demo`: crawls a shop on loopback from start to results."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.display.screen import Screen
from shoal.cli.options import dashboard_option, places_of
from shoal.crawl.places import DEFAULT_FILE

if TYPE_CHECKING:
    from shoal.cli.display.summary import Summary
    from shoal.cli.process.job import Job
    from shoal.crawl.opening import Places
    from shoal.testing.sites.site_process import SiteProcess
    from shoal.worker.deaths import Watched

REFERENCE = "shoal.cli.demo_spider:Shop"
FOLDER = Path("shoal-demo")
SAMPLE_ROWS = 6
WINDOW_SECONDS = 5.0


@click.command(short_help="See a crawl from start to results: a shop on loopback.")
@click.option(
    "--products",
    metavar="N",
    type=click.IntRange(1, 100_000),
    default=300,
    show_default=True,
    help="Books in the shop.",
)
@click.option(
    "--workers", metavar="N", type=click.IntRange(1, 64), default=3, show_default=True, help="Worker processes."
)
@dashboard_option
def demo(products: int, workers: int, *, dashboard: bool) -> int:
    """See a crawl from start to results: a shop on loopback, crawled by three worker processes.

    \b
    Example: shoal demo --products 1000 --workers 4
    """
    from shoal.cli.process.supervisor import guarded

    def whole(watched: Watched | None) -> int:
        return _demo(products, workers, dashboard=dashboard, watched=watched)

    return guarded(whole, is_worker=workers == 1)


def _demo(products: int, workers: int, *, dashboard: bool, watched: Watched | None) -> int:
    """The whole demo. After a crash of its process it starts again, with a new shop."""
    from shoal.cli.display.numbers import several
    from shoal.cli.loop import run
    from shoal.cli.process.run_process import return_code, work
    from shoal.testing.sites.site_process import site_process

    screen = Screen()
    FOLDER.mkdir(exist_ok=True)
    log = FOLDER / "site.jsonl"
    log.unlink(missing_ok=True)
    with site_process("--products", str(products), log=log) as site:
        reviews = f", its slow reviews on {site.urls[1]}" if len(site.urls) > 1 else ""
        screen.say(f"a shop of {several(products, 'book')} on {site.url}{reviews}")
        job = replace(_job(site, workers=workers, watched=watched), dashboard=dashboard)
        summary = run(work(job, screen))
        _show(summary, job.places, site, screen)
    if not summary.interrupted:
        run(_show_items(summary, job.places, screen))
        _show_next(summary, site, screen)
    return return_code(summary)


def _job(site: SiteProcess, *, workers: int, watched: Watched | None) -> Job:
    from shoal.cli.crawl import starting_at
    from shoal.cli.process.job import Job
    from shoal.crawl.opening import Places
    from shoal.run.intakes import settings_of
    from shoal.spider.loading import load_spider
    from shoal.spider.spider import Sitemap
    from shoal.urls.canonical import lane_of

    start = [site.url, Sitemap(site.url, handler="book")]
    kind = starting_at(load_spider(REFERENCE), start, name="demo")
    flags: dict[str, Any] = {"allow": [lane_of(url) for url in site.urls], "allow_private": True}
    database = str(FOLDER / "shoal.db")
    return Job(
        spider=kind(),
        reference=REFERENCE,
        settings=settings_of(kind, flags).values,
        places=Places(frontier=database, store=database),
        workers=workers,
        # The shop of an earlier demo is gone: its URLs lead nowhere.
        fresh=True,
        watched=None if watched is None else watched._replace(has_begun=False),
    )


def _show(summary: Summary, places: Places, site: SiteProcess, screen: Screen) -> None:
    from shoal.cli.display.numbers import several
    from shoal.cli.display.summary import show_summary
    from shoal.testing.sites.loopback import busiest_window

    hits = site.hits()
    fastest = busiest_window(hits, seconds=WINDOW_SECONDS) / WINDOW_SECONDS
    seen = f"{several(len(hits), 'request')}, at most {fastest:.0f}/s to one host"
    show_summary(summary, screen, places=places, more=[("the site saw", seen)])


async def _show_items(summary: Summary, places: Places, screen: Screen) -> None:
    import msgspec

    from shoal.cli.display.lines import one_line
    from shoal.crawl.opening import store_at
    from shoal.store.base import ItemFilter

    rows: list[list[str]] = []
    async with store_at(places.store) as store:
        async for item in store.items(ItemFilter(spider=summary.spider, crawl=summary.crawl)):
            fields = msgspec.json.decode(item.data)
            if "price" in fields:
                rows.append([item.key, *(one_line(fields.get(name, ""), 40) for name in ("title", "price", "stock"))])
            if len(rows) == SAMPLE_ROWS:
                break
    screen.line()
    screen.heading("some of the items")
    screen.table(("key", "title", "price", "stock"), rows, right=("price", "stock"))


def _activation() -> list[tuple[str, str]]:
    """The command that puts shoal on the shell's path, unless it is there."""
    script = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("shoal") or not script.exists() or not script.with_name("shoal").exists():
        return []
    return [(f". {os.path.relpath(script)}", "puts shoal on your path")]


def _show_next(summary: Summary, site: SiteProcess, screen: Screen) -> None:
    from shoal.cli.display.next_commands import command, quote

    activation = _activation()
    # Typed in the crawl's folder, where a relative path to shoal would be wrong.
    by = "shoal" if activation or shutil.which("shoal") else f"{quote(sys.executable)} -m shoal"
    lines = [
        (f"why {site.url}private/stock-0.html", "why it was not fetched"),
        (f"why {site.url}product/gone-0.html", "what happened to it"),
        ("status", "counts, lanes, workers"),
        (f"export {summary.crawl} -o books.csv", "the items as a table"),
        ("crawl https://example.com/ --depth 2", "a site of your own"),
    ]
    screen.line()
    screen.heading("next")
    screen.pairs(
        [
            *activation,
            (f"cd {FOLDER}", "the crawl's folder"),
            *((command(line, places_of(DEFAULT_FILE, None), by=by), what) for line, what in lines),
        ]
    )
