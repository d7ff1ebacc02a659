"""`shoal add`: adds URLs to a crawl."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import click

from shoal.cli.display.counting import Counting
from shoal.cli.display.numbers import count
from shoal.cli.display.screen import Screen
from shoal.cli.options import json_with, place_options

if TYPE_CHECKING:
    from shoal.frontier.base import Frontier
    from shoal.model import Crawl
    from shoal.processes.adding import Added
    from shoal.processes.opening import Places
    from shoal.spider import Request

STDIN = "-"


@click.command(short_help="Add URLs to a crawl, running or finished.")
@click.argument("crawl_or_url", metavar="[CRAWL]", required=False)
@click.argument("urls", metavar="URL...|-", nargs=-1)
@click.option("--kind", metavar="NAME", help="Only workers that do this kind get them.  [default: the spider's kind]")
@place_options(store=False)
@json_with("crawl", "new", "duplicates", "rejected")
def add(crawl_or_url: str | None, urls: tuple[str, ...], *, kind: str | None, places: Places, as_json: bool) -> None:
    """Add URLs to a crawl, running or finished; - reads them from standard input, one per line.

    \b
    Example: shoal add books-1 https://books.toscrape.com/catalogue/page-7.html
             zcat urls.gz | shoal add books -
             shoal add books-1 https://books.toscrape.com/map --kind browser
    """
    from shoal.cli.loop import run
    from shoal.setting_values import check_kind

    if kind is not None:
        check_kind(kind, what="--kind")
    crawl = crawl_or_url
    if crawl_or_url is not None and ("://" in crawl_or_url or crawl_or_url == STDIN):
        crawl, urls = None, (crawl_or_url, *urls)
    if not urls:
        raise click.UsageError(
            "Give the URLs to add, or - to read them from standard input", click.get_current_context()
        )
    screen = Screen()
    report = run(_add(crawl, _given(urls), kind=kind, places=places, screen=screen))
    if as_json:
        screen.json(report)
    else:
        _show(report, screen)


async def _add(
    crawl_name: str | None, urls: Iterable[str], *, kind: str | None, places: Places, screen: Screen
) -> Added:
    from shoal.cli.which import chosen_crawl
    from shoal.spider import Request

    async with chosen_crawl(places, crawl_name) as (frontier, crawl):
        with Counting.on(screen) as counting:
            requests = (Request(url, kind=kind) for url in urls)
            added = await _put(requests, crawl, frontier=frontier, counting=counting)
        if added.new and (line := await _nobody_line(crawl, kind, frontier=frontier)):
            screen.say(line)
        return added


async def _nobody_line(crawl: Crawl, kind: str | None, *, frontier: Frontier) -> str:
    """That no worker does what was added, and what to start; empty where one does. Workers may have left as the URLs
    came in."""
    from shoal.processes.crew import at_work
    from shoal.processes.served_kinds import unserved, unserved_line

    workers = await at_work(crawl.id, frontier=frontier)
    if (workers or kind) and (missing := unserved(await frontier.progress(crawl.id), workers)):
        return unserved_line(missing, crawl)
    return "" if workers else f"nobody works on {crawl.id} now: run the command that began it again"


async def _put(requests: Iterable[Request], crawl: Crawl, *, frontier: Frontier, counting: Counting) -> Added:
    from shoal.crawl import intake_of
    from shoal.processes.adding import Added, add_requests

    intake = intake_of(crawl)
    added = Added(crawl=crawl.id)
    for batch in _batches(requests):
        await add_requests(batch, added, intake=intake, frontier=frontier)
        counting.show(partial(_line, added))
    return added


def _given(urls: Iterable[str]) -> Iterator[str]:
    """The URLs to add. A wrong one on the command line is refused, one on standard input is only counted."""
    from shoal.urls import canonical

    for url in [url if url == STDIN else canonical(url) for url in urls]:
        if url == STDIN:
            lines = (line.decode("utf-8", "replace").strip() for line in sys.stdin.buffer)
            yield from (line for line in lines if line and not line.startswith("#"))
        else:
            yield url


def _batches(requests: Iterable[Request]) -> Iterator[list[Request]]:
    from shoal.processes.adding import BATCH

    batch: list[Request] = []
    for request in requests:
        batch.append(request)
        if len(batch) >= BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _line(added: Added) -> str:
    return f"{added.crawl}: {count(added.new)} new, {count(added.duplicates)} known already"


def _show(added: Added, screen: Screen) -> None:
    from shoal.scope import REASONS

    screen.line(_line(added))
    rows = [(count(number), reason, REASONS.get(reason, "")) for reason, number in added.rejected.items()]
    if rows:
        screen.table(("urls", "kept out", ""), rows, right=("urls",))
