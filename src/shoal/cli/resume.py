"""`shoal resume`: continues a crawl."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shoal.cli.options import crawl_argument, json_with, place_options
from shoal.cli.steer import STEERED, steer
from shoal.model import CrawlState

if TYPE_CHECKING:
    from shoal.crawl.opening import Places


@click.command(short_help="Resume a paused, stopped or cancelled crawl.")
@crawl_argument
@place_options(store=False)
@json_with(*STEERED)
def resume(crawl: str | None, *, places: Places, as_json: bool) -> None:
    """Resume a paused, stopped or cancelled crawl.

    \b
    Example: shoal resume books-1
    """
    steer(crawl, CrawlState.RUNNING, places=places, as_json=as_json)
