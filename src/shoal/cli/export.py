"""`shoal export`: the items as a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shoal.cli.figures import count
from shoal.cli.options import crawl_argument, place_options
from shoal.cli.screen import Screen

if TYPE_CHECKING:
    from shoal.crawl import Places


@click.command(short_help="Write a crawl's items to a file.")
@crawl_argument
@click.option("-o", "--output", metavar="FILE", required=True, help="A .jsonl, .csv, .json or .parquet file, or -.")
@click.option("--all", "everything", is_flag=True, help="All items of the spider, those of its other crawls too.")
@place_options()
def export(crawl: str | None, *, places: Places, output: str, everything: bool) -> None:
    """Write a crawl's items to a file; - writes JSON Lines to standard output.

    \b
    Example: shoal export books-1 -o books.csv
    """
    from shoal.cli.loop import run

    run(_export(crawl, output, everything=everything, places=places))


async def _export(name: str | None, output: str, *, everything: bool, places: Places) -> None:
    from shoal.cli.which import find_crawl
    from shoal.crawl import opened
    from shoal.export import check_target
    from shoal.export import export as write_items

    check_target(output)
    async with opened(places) as (frontier, store):
        crawl = await find_crawl(frontier, name)
        number = await write_items(store, output, spider=crawl.spider, crawl=None if everything else crawl.id)
    Screen().say(f"{count(number)} items of {crawl.spider if everything else crawl.id} in {output}")
