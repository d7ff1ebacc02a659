"""`shoal pause`: pauses a crawl."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shoal.cli.options import crawl_argument, json_with, place_options
from shoal.cli.steer import STEERED, steer
from shoal.model import CrawlState

if TYPE_CHECKING:
    from shoal.crawl.opening import Places


@click.command(short_help="Pause a crawl: nothing new is fetched until `shoal resume`.")
@crawl_argument
@place_options(store=False)
@json_with(*STEERED)
def pause(crawl: str | None, *, places: Places, as_json: bool) -> None:
    """Pause a crawl: nothing new is fetched until `shoal resume`.

    \b
    Example: shoal pause books-1
    """
    steer(crawl, CrawlState.PAUSED, places=places, as_json=as_json)
