"""`shoal diff`: items that are new, changed or gone between two runs or two times."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from shoal.cli.display.differences import DifferenceLines, total
from shoal.cli.display.numbers import moment_given, several
from shoal.cli.display.screen import Screen
from shoal.cli.options import check_exists, json_with, place_options
from shoal.crawl.places import check_store_exists
from shoal.errors import UsageError
from shoal.text.secrets import masked

if TYPE_CHECKING:
    from shoal.crawl.opening import Places
    from shoal.model import Crawl
    from shoal.store.base import Difference, Store

CHANGES = ("new", "changed", "gone", "untold")


class Span(NamedTuple):
    """A spider, and the two times between which its items are compared."""

    spider: str
    since: float
    until: float


class DiffRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to compare: up to two crawls, or a spider and times."""

    crawls: tuple[str, ...]
    spider: str | None
    since: str | None
    until: str | None


@click.command(short_help="Show items that are new, changed or gone.")
@click.argument("crawls", metavar="[CRAWL [CRAWL]]", nargs=-1)
@click.option(
    "--since", metavar="TIME", help="Compare with the items at this time: 2026-05-01T10:00, or 7d for a week ago."
)
@click.option("--until", metavar="TIME", help="Compare up to this time, not up to now; with --since.")
@click.option("--spider", metavar="NAME", help="The items of this spider; needs only the store, and --since.")
@click.option("--only", type=click.Choice(CHANGES), multiple=True, help="Only these differences; repeatable.")
@place_options(exists=False)
@json_with("spider", "since", "until", "differences", *CHANGES)
def diff(crawls: tuple[str, ...], *, places: Places, only: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Show items that are new, changed or gone.

    CRAWL is a crawl's id, or a spider's name for its newest crawl. One crawl: what it changed. Two: what changed
    between the ends of the first and the second. With --since: the spider's items then and now.

    \b
    Example: shoal diff books
    Example: shoal diff books-1 books-3
    Example: shoal diff books --since 7d --only gone
    """
    from shoal.cli.loop import run

    request = DiffRequest(crawls=crawls, **options)
    _check(request)
    run(_diff(request, places=places, only=only or CHANGES, as_json=as_json))


def _check(request: DiffRequest) -> None:
    """Refuse contradicting options, before anything is opened."""
    if len(request.crawls) > 2:
        raise UsageError(f"at most two crawls are compared, not {len(request.crawls)}: name the first and the last one")
    if request.spider is not None and request.crawls:
        raise UsageError("--spider needs only the store: leave out the crawl, or --spider")
    if request.since is None and (request.until is not None or request.spider is not None):
        given = "--until" if request.until is not None else "--spider"
        raise UsageError(f"{given} needs a time to compare with: add --since 7d, or --since 2026-05-01")
    if request.since is not None and len(request.crawls) == 2:
        raise UsageError("either two crawls are compared or two times: leave out --since and --until, or a crawl")


async def _diff(request: DiffRequest, *, places: Places, only: Sequence[str], as_json: bool) -> None:
    screen = Screen()
    async with _compared(request, places, screen) as (store, span):
        if span.since >= span.until:
            raise UsageError("no time between the two: --since must be before --until, and before now")
        differences = store.differences(span.spider, since=span.since, until=span.until)
        counts = await _show(differences, span, only=only, screen=screen, as_json=as_json)
    screen.say(total(counts, span.spider, since=span.since, until=span.until))
    if counts["untold"]:
        screen.say(
            f"untold: unknown for {several(counts['untold'], 'item')}, their contents of that time were not kept; the"
            " setting keep_versions keeps them from now on"
        )


async def _show(
    differences: AsyncIterator[Difference], span: Span, *, only: Sequence[str], screen: Screen, as_json: bool
) -> Counter[str]:
    """Write the differences one by one; returns how many there are of each kind."""
    counts: Counter[str] = Counter(dict.fromkeys(CHANGES, 0))
    lines = DifferenceLines(screen, as_json=as_json)
    lines.begin(span._asdict())
    async for one in differences:
        if one.change in only:
            counts[one.change] += 1
            lines.add(one)
    lines.end(counts)
    return counts


@asynccontextmanager
async def _compared(request: DiffRequest, places: Places, screen: Screen) -> AsyncIterator[tuple[Store, Span]]:
    """The store with the items, and what is compared."""
    from shoal.crawl.opening import store_at

    if request.spider is not None:
        from shoal.crawl.places import default_store

        url = places.store or default_store(places.frontier)
        span = _between(request.spider, request)
    else:
        url, span = await _of_crawls(request, places, screen)
    check_store_exists(url)
    async with store_at(url) as store:
        if request.spider is not None:
            await _check_spider(store, request.spider, url)
        yield store, span


async def _of_crawls(request: DiffRequest, places: Places, screen: Screen) -> tuple[str, Span]:
    """The store of the named crawls, and what is compared."""
    from shoal.cli.crawl_choice import choose
    from shoal.crawl.joining import existing_store
    from shoal.crawl.opening import frontier_at

    check_exists(places)
    async with frontier_at(places.frontier) as frontier:
        crawls = await frontier.crawls()
    chosen = [choose(crawls, name, say=screen.say) for name in request.crawls or (None,)]
    urls = {existing_store(crawl, places) for crawl in chosen}
    if len(urls) > 1:
        raise UsageError(
            f"{chosen[0].id} and {chosen[1].id} have their items in different stores: choose one with --store"
        )
    if request.since is None:
        return urls.pop(), _between_runs(chosen, crawls)
    crawl = chosen[0]
    if request.crawls and request.crawls[0] != crawl.spider:
        raise UsageError(f"--since compares all items of a spider, not of one crawl: write {crawl.spider}")
    return urls.pop(), _between(crawl.spider, request)


def _between(spider: str, request: DiffRequest) -> Span:
    until = time.time() if request.until is None else moment_given(request.until)
    return Span(spider, moment_given(request.since or ""), until)


def _between_runs(chosen: Sequence[Crawl], crawls: Sequence[Crawl]) -> Span:
    """One crawl: from its start. Two: from the end of the first. A crawl lasts until the spider's next one begins, or
    until now: marking items as gone, after the last page, belongs to it."""
    first, last = chosen[0], chosen[-1]
    if first.spider != last.spider:
        raise UsageError(f"{first.id} is a crawl of {first.spider} and {last.id} one of {last.spider}: name one spider")
    if len(chosen) == 2 and first.id == last.id:
        raise UsageError(f"both crawls are {first.id}: `shoal diff {first.id}` shows what it changed")
    if first.created > last.created:
        raise UsageError(f"{first.id} began after {last.id}: write `shoal diff {last.id} {first.id}`")
    since = first.created if len(chosen) == 1 else _end(first, crawls)
    return Span(first.spider, since, _end(last, crawls))


def _end(crawl: Crawl, crawls: Sequence[Crawl]) -> float:
    later = [one.created for one in crawls if one.spider == crawl.spider and one.created > crawl.created]
    return min(later, default=time.time())


async def _check_spider(store: Store, spider: str, url: str) -> None:
    from shoal.store.base import ItemFilter

    if not await store.count_items(ItemFilter(spider=spider)):
        raise UsageError(f"{masked(url)} has no item of the spider {spider!r}: check the name, or give --store")
