"""`shoal cancel`: ends a crawl; its waiting tasks are set aside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shoal.cli.options import crawl_argument, json_with, place_options, yes_option
from shoal.cli.steer import STEERED, steer
from shoal.model import CrawlState

if TYPE_CHECKING:
    from shoal.crawl.opening import Places


@click.command(short_help="Cancel a crawl: waiting tasks are set aside.")
@crawl_argument
@place_options(store=False)
@yes_option
@json_with(*STEERED)
def cancel(crawl: str | None, *, places: Places, yes: bool, as_json: bool) -> None:
    """Cancel a crawl: waiting tasks are set aside, pages in flight are finished.

    \b
    Example: shoal cancel books-1
    """
    steer(crawl, CrawlState.CANCELLED, places=places, as_json=as_json, yes=yes)
