"""`shoal export`: writes items to a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shoal.cli.display.numbers import count, moment_given
from shoal.cli.display.screen import Screen
from shoal.cli.options import check_exists, check_store_exists, crawl_argument, place_options
from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.processes.opening import Places
    from shoal.results.export import Wanted
    from shoal.store.base import Store


@click.command(short_help="Write a crawl's items to a file.")
@crawl_argument
@click.option("-o", "--output", metavar="FILE", required=True, help="A .jsonl, .csv, .json or .parquet file, or -.")
@click.option("--all", "everything", is_flag=True, help="All items of the spider, also those of its other crawls.")
@click.option("--spider", metavar="NAME", help="All items of this spider; needs only the store.")
@click.option("--since", metavar="TIME", help="Items seen since then: 2026-05-01, 2026-05-01T10:00, or 7d for a week.")
@click.option("--changed-since", metavar="TIME", help="Items that are new or have changed since then.")
@click.option("--url", "url_prefix", metavar="PREFIX", help="Items of pages whose URL begins with this.")
@click.option("--where", metavar="FIELD=VALUE", multiple=True, help="Items with this value in this field; repeatable.")
@click.option("--versions", is_flag=True, help="Every version that was kept, not just the latest.")
@place_options(exists=False)
def export(crawl: str | None, *, places: Places, output: str, **choice: Any) -> None:
    """Write a crawl's items to a file; - writes JSON Lines to standard output.

    \b
    Example: shoal export books-1 -o books.csv
    Example: shoal export --spider books --changed-since 7d -o news.jsonl
    """
    from shoal.cli.loop import run

    run(_export(crawl, output, places=places, **choice))


async def _export(
    name: str | None, output: str, *, places: Places, everything: bool, spider: str | None, **choice: Any
) -> None:
    from shoal.cli.which import choose
    from shoal.processes.opening import opened, store_at
    from shoal.results.export import check_target

    check_target(output)
    wanted = _wanted(**choice)
    check_store_exists(places.store)
    if spider is None:
        check_exists(places)
        async with opened(places) as (frontier, store):
            crawl = choose(await frontier.crawls(), name)
            await _write(store, output, _of(wanted, crawl.spider, None if everything else crawl.id))
    elif name is not None or everything:
        raise UsageError("--spider means all items of the spider: leave out the crawl and --all")
    else:
        async with store_at(places.store) as store:
            await _write(store, output, _of(wanted, spider, None))


async def _write(store: Store, output: str, wanted: Wanted) -> None:
    from shoal.results.export import export as write_items

    screen = Screen()
    number = await write_items(
        store, output, wanted=wanted, show=lambda so_far: screen.say(f"{count(so_far)} items so far")
    )
    what = "versions" if wanted.versions else "items"
    screen.say(f"{count(number)} {what} of {wanted.which.crawl or wanted.which.spider} in {output}")


def _wanted(
    *, since: str | None, changed_since: str | None, url_prefix: str | None, where: tuple[str, ...], versions: bool
) -> Wanted:
    from shoal.results.export import Wanted
    from shoal.store.base import ItemFilter

    which = ItemFilter(since=_moment(since), changed_since=_moment(changed_since), url_prefix=url_prefix)
    return Wanted(which=which, where=tuple(map(_condition, where)), versions=versions)


def _of(wanted: Wanted, spider: str, crawl: str | None) -> Wanted:
    from msgspec.structs import replace

    return replace(wanted, which=replace(wanted.which, spider=spider, crawl=crawl))


def _moment(text: str | None) -> float | None:
    return None if text is None else moment_given(text)


def _condition(text: str) -> tuple[str, str]:
    field, equals, value = text.partition("=")
    if not equals or not field:
        raise UsageError(f"--where {text!r} is not understood: write --where FIELD=VALUE")
    return field, value
