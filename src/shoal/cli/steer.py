"""`shoal pause`, `resume`, `cancel`, `pace` and `priority`: change a crawl while it runs."""

from __future__ import annotations

import time
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec.structs import replace

from shoal.cli.display.numbers import several
from shoal.cli.display.screen import Screen
from shoal.cli.options import crawl_argument, json_with, place_options, yes_option
from shoal.errors import UsageError
from shoal.model import VIA, CrawlState

if TYPE_CHECKING:
    from shoal.crawl.opening import Places
    from shoal.frontier.base import Frontier
    from shoal.model import Crawl

LANES_READ = 5_000
NEAR_SHOWN = 3
MOST_PRIORITY = 1000
STEERED = ("crawl", "state", "left", "in_flight", "cancelled")
RUN_AGAIN = "a running worker continues it; if none runs, repeat the command that began it"


class Steered(msgspec.Struct, frozen=True, kw_only=True):
    """A crawl after its state was changed, for scripts: its tasks that are left, in flight and set aside."""

    crawl: str
    state: CrawlState
    left: int
    in_flight: int
    cancelled: int


class Paced(msgspec.Struct, frozen=True, kw_only=True):
    """A lane with a new pace, for scripts. `near` has names like that of a lane where the crawl has nothing to do."""

    crawl: str
    lane: str
    rate: str
    is_known: bool
    near: list[str] = []


class Prioritised(msgspec.Struct, frozen=True, kw_only=True):
    """A crawl with a new priority, for scripts, and the one before."""

    crawl: str
    priority: int
    before: int


class NumberLast(click.Command):
    """A command whose last argument is a number, also one below zero, which click takes for an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        below = [one for one in args if one[:1] == "-" and one[1:].isdigit()]
        return super().parse_args(ctx, [one for one in args if one not in below] + (["--", *below] if below else []))


@click.command(short_help="Pause a crawl: nothing new is fetched until resume.")
@crawl_argument
@place_options(store=False)
@json_with(*STEERED)
def pause(crawl: str | None, *, places: Places, as_json: bool) -> None:
    """Pause a crawl: nothing new is fetched until resume.

    \b
    Example: shoal pause books-1
    """
    _steer(crawl, CrawlState.PAUSED, places=places, as_json=as_json)


@click.command(short_help="Resume a paused, stopped or cancelled crawl.")
@crawl_argument
@place_options(store=False)
@json_with(*STEERED)
def resume(crawl: str | None, *, places: Places, as_json: bool) -> None:
    """Resume a paused, stopped or cancelled crawl.

    \b
    Example: shoal resume books-1
    """
    _steer(crawl, CrawlState.RUNNING, places=places, as_json=as_json)


@click.command(short_help="Cancel a crawl: tasks that still wait are set aside.")
@crawl_argument
@place_options(store=False)
@yes_option
@json_with(*STEERED)
def cancel(crawl: str | None, *, places: Places, yes: bool, as_json: bool) -> None:
    """Cancel a crawl: tasks that still wait are set aside, pages in flight are finished.

    \b
    Example: shoal cancel books-1
    """
    _steer(crawl, CrawlState.CANCELLED, places=places, as_json=as_json, yes=yes)


@click.command(short_help="Change the pace of one host, from the next request on.")
@click.argument("host")
@click.argument("rate")
@crawl_argument
@place_options(store=False)
@json_with("crawl", "lane", "rate", "is_known", "near")
def pace(host: str, rate: str, crawl: str | None, *, places: Places, as_json: bool) -> None:
    """Change the pace of one host, from the next request on.

    Requests to the host via a pool have a pace of their own, over all exits of the pool: "example.com via POOL".

    \b
    Example: shoal pace example.com 30/m books-1
             shoal pace "example.com via residential" 2/s
    """
    from shoal.cli.loop import run

    run(_pace(host, rate, crawl, places=places, as_json=as_json))


@click.command(cls=NumberLast, short_help="Change the priority of a crawl over others.")
@click.argument("crawl")
@click.argument("number", metavar="N", type=click.IntRange(-MOST_PRIORITY, MOST_PRIORITY))
@place_options(store=False)
@json_with("crawl", "priority", "before")
def priority(crawl: str, number: int, *, places: Places, as_json: bool) -> None:
    """Change the priority of a crawl over others, from the next lease on; 0 is that of crawls that name none.

    Workers that have several crawls give the highest nine of ten slots while it has work for them, and the others take
    turns at the rest. At a host that crawls share, a crawl of priority 1 starts nine requests for each one of a crawl
    of priority 0.

    \b
    Example: shoal priority books-1 5
             shoal priority archive-7 -1
    """
    from shoal.cli.loop import run

    run(_prioritise(crawl, number, places=places, as_json=as_json))


def _steer(crawl: str | None, state: CrawlState, *, places: Places, as_json: bool, yes: bool = False) -> None:
    from shoal.cli.loop import run

    before, steered = run(_set_state(crawl, state, places=places, yes=yes))
    screen = Screen()
    if as_json:
        screen.json(steered)
        return
    said = f"{steered.crawl} is {steered.state}: {several(steered.left, 'task')} left"
    if state is CrawlState.CANCELLED:
        set_aside = several(steered.cancelled, "task")
        said = f"{steered.crawl} is {steered.state}: {set_aside} set aside, {steered.in_flight:,} in flight"
    if state is CrawlState.RUNNING and before is not state:
        said += f"; {RUN_AGAIN}"
    screen.line(said)


async def _set_state(name: str | None, state: CrawlState, *, places: Places, yes: bool) -> tuple[CrawlState, Steered]:
    """The state before, and the crawl as it is now."""
    from shoal.cli.display.next_commands import run_again
    from shoal.cli.which import ask_if_others_work_on, chosen_crawl
    from shoal.insight.stats import raised_budget, spent_budget
    from shoal.policy.limits import raised, reached_by
    from shoal.run.steering import check_change

    async with chosen_crawl(places, name) as (frontier, crawl):
        former = await frontier.progress(crawl.id)
        before = former.state
        if state is CrawlState.RUNNING and (spent := spent_budget(crawl, former)):
            again = run_again(crawl, places, budget=raised_budget(crawl))
            raise UsageError(f"{crawl.id}: {spent}: {again}")
        if state is CrawlState.RUNNING and (limit := reached_by(crawl, former, now=time.time())):
            again = run_again(crawl, places, **raised(crawl, former))
            raise UsageError(f"{crawl.id}: {limit.why}: {again}")
        check_change(crawl, former, state)
        if state is CrawlState.CANCELLED:
            await ask_if_others_work_on(crawl, frontier=frontier, deed="cancel", yes=yes)
        await frontier.set_state(crawl.id, state)
        progress = await frontier.progress(crawl.id)
    return before, Steered(
        crawl=crawl.id,
        state=progress.state,
        left=progress.left,
        in_flight=progress.leased,
        cancelled=progress.cancelled,
    )


async def _pace(host: str, rate: str, name: str | None, *, places: Places, as_json: bool) -> None:
    from shoal.cli.display.next_commands import command, quote
    from shoal.cli.which import chosen_crawl
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
        screen.say(f"warning: {crawl.id} has nothing to do at {lane} so far{meant}")
    if crawl.state is CrawlState.FINISHED:
        screen.say(f"warning: {crawl.id} is finished: the pace holds when URLs are added to it")
    if crawl.pools and VIA not in lane:
        via = quote(f"{lane}{VIA}{crawl.pools[0].name}")
        own = command(f"pace {via} {quote(rate)} {quote(crawl.id)}", places)
        screen.line(f"requests to it via a pool have their own pace: {own}")


async def _prioritise(name: str, number: int, *, places: Places, as_json: bool) -> None:
    from shoal.cli.which import chosen_crawl
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
        screen.say(f"warning: {crawl.id} is {crawl.state}: its priority holds when it runs again")


async def _hosts(frontier: Frontier, crawl: Crawl) -> list[str]:
    """The lanes that the crawl began with, and those that have something to do."""
    from shoal.crawl.record import record_of

    first = record_of(crawl).start_lanes if crawl.settings else []
    return [*first, *(one.lane for one in await frontier.lanes(crawl.id, limit=LANES_READ))]
