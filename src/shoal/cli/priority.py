"""`shoal priority`: changes the priority of a crawl over others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from shoal.cli.display.screen import Screen
from shoal.cli.options import json_with, place_options

if TYPE_CHECKING:
    from shoal.crawl.opening import Places

MOST_PRIORITY = 1000


class Prioritised(msgspec.Struct, frozen=True, kw_only=True):
    """A crawl with its new and former priority, for scripts."""

    crawl: str
    priority: int
    before: int


class NumberLast(click.Command):
    """A command whose last argument may be negative; click alone would read it as an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        below = [one for one in args if one[:1] == "-" and one[1:].isdigit()]
        return super().parse_args(ctx, [one for one in args if one not in below] + (["--", *below] if below else []))


@click.command(cls=NumberLast, short_help="Change the priority of a crawl over others.")
@click.argument("crawl")
@click.argument("number", metavar="N", type=click.IntRange(-MOST_PRIORITY, MOST_PRIORITY))
@place_options(store=False)
@json_with("crawl", "priority", "before")
def priority(crawl: str, number: int, *, places: Places, as_json: bool) -> None:
    """Change the priority of a crawl over others, from the next lease on; the default is 0.

    A worker with several crawls gives nine of ten slots to the crawl with the highest priority while it has tasks; the
    others share the rest in turn. At a host that crawls share, a crawl of priority 1 starts nine requests for each
    request of a crawl of priority 0.

    \b
    Example: shoal priority books-1 5
             shoal priority archive-7 -1
    """
    from shoal.cli.loop import run

    run(_prioritise(crawl, number, places=places, as_json=as_json))


async def _prioritise(name: str, number: int, *, places: Places, as_json: bool) -> None:
    from shoal.cli.crawl_choice import chosen_crawl
    from shoal.crawl.record import is_unfinished
    from shoal.run.steering import set_priority

    async with chosen_crawl(places, name) as (frontier, crawl):
        before = await set_priority(crawl, number, frontier=frontier)
    screen = Screen()
    if as_json:
        screen.json(Prioritised(crawl=crawl.id, priority=number, before=before))
        return
    screen.line(f"{crawl.id} has priority {number} from the next lease on; it had {before}")
    if not is_unfinished(crawl.state):
        screen.say(f"warning: {crawl.id} is {crawl.state}: the priority applies when it runs again")
