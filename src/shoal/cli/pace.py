"""`shoal pace`: changes the pace of one host while its crawl runs."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec.structs import replace

from shoal.cli.display.screen import Screen
from shoal.cli.options import crawl_argument, json_with, place_options
from shoal.model import VIA, CrawlState

if TYPE_CHECKING:
    from shoal.crawl.opening import Places
    from shoal.frontier.base import Frontier
    from shoal.model import Crawl

LANES_READ = 5_000
NEAR_SHOWN = 3


class Paced(msgspec.Struct, frozen=True, kw_only=True):
    """A lane with a new pace, for scripts. `near`: similar lanes, if the crawl has no tasks at this one."""

    crawl: str
    lane: str
    rate: str
    is_known: bool
    near: list[str] = []


@click.command(short_help="Change the pace of one host, from the next request on.")
@click.argument("host")
@click.argument("rate")
@crawl_argument
@place_options(store=False)
@json_with("crawl", "lane", "rate", "is_known", "near")
def pace(host: str, rate: str, crawl: str | None, *, places: Places, as_json: bool) -> None:
    """Change the pace of one host, from the next request on.

    Requests to the host through a pool have their own pace, over all exits of the pool: "example.com via POOL".

    \b
    Example: shoal pace example.com 30/m books-1
             shoal pace "example.com via residential" 2/s
    """
    from shoal.cli.loop import run

    run(_pace(host, rate, crawl, places=places, as_json=as_json))


async def _pace(host: str, rate: str, name: str | None, *, places: Places, as_json: bool) -> None:
    from shoal.cli.crawl_choice import chosen_crawl
    from shoal.cli.display.next_commands import command, quote
    from shoal.insight.stats import describe_interval
    from shoal.run.steering import check_pool, lane_given, set_pace
    from shoal.settings.values import parse_rate

    lane = lane_given(host)
    parse_rate(rate)
    async with chosen_crawl(places, name) as (frontier, crawl):
        check_pool(lane, crawl)
        hosts = await _hosts(frontier, crawl)
        is_known = lane in hosts or bool((await frontier.rules(crawl.id, lane))[0])
        interval = await set_pace(crawl, lane, rate, frontier=frontier)
    paced = Paced(crawl=crawl.id, lane=lane, rate=describe_interval(interval), is_known=is_known)
    if not is_known:
        paced = replace(paced, near=get_close_matches(lane, dict.fromkeys(hosts), n=NEAR_SHOWN))
    screen = Screen()
    if as_json:
        screen.json(paced)
        return
    screen.line(f"{crawl.id}: {lane} at {paced.rate} from the next request on")
    if not is_known:
        meant = f"; did you mean {' or '.join(paced.near)}?" if paced.near else ""
        screen.say(f"warning: {crawl.id} has no tasks at {lane} so far{meant}")
    if crawl.state is CrawlState.FINISHED:
        screen.say(f"warning: {crawl.id} is finished: the pace applies when URLs are added")
    if crawl.pools and VIA not in lane:
        via = quote(f"{lane}{VIA}{crawl.pools[0].name}")
        own = command(f"pace {via} {quote(rate)} {quote(crawl.id)}", places)
        screen.line(f"requests to it through a pool have their own pace: {own}")


async def _hosts(frontier: Frontier, crawl: Crawl) -> list[str]:
    """The lanes of the crawl's start, and those with tasks."""
    from shoal.crawl.record import record_of

    first = record_of(crawl).start_lanes if crawl.settings else []
    return [*first, *(one.lane for one in await frontier.lanes(crawl.id, limit=LANES_READ))]
