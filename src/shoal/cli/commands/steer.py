"""`shoal pause`, `resume`, `cancel` and `pace`: change a crawl while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shoal.cli.display.numbers import several
from shoal.cli.display.screen import Screen
from shoal.cli.options import crawl_argument, place_options
from shoal.errors import UsageError
from shoal.model import VIA, CrawlState, LaneUpdate

if TYPE_CHECKING:
    from shoal.model import Crawl
    from shoal.processes.opening import Places

RUN_AGAIN = "a running worker continues it; if none runs, repeat the command that began it"


@click.command(short_help="Pause a crawl: nothing new is fetched until resume.")
@crawl_argument
@place_options(store=False)
def pause(crawl: str | None, *, places: Places) -> None:
    """Pause a crawl: nothing new is fetched until resume.

    \b
    Example: shoal pause books-1
    """
    _steer(crawl, CrawlState.PAUSED, places=places)


@click.command(short_help="Resume a paused or cancelled crawl.")
@crawl_argument
@place_options(store=False)
def resume(crawl: str | None, *, places: Places) -> None:
    """Resume a paused or cancelled crawl.

    \b
    Example: shoal resume books-1
    """
    _steer(crawl, CrawlState.RUNNING, places=places)


@click.command(short_help="Cancel a crawl: tasks that still wait are set aside.")
@crawl_argument
@place_options(store=False)
def cancel(crawl: str | None, *, places: Places) -> None:
    """Cancel a crawl: tasks that still wait are set aside, pages in flight are finished.

    \b
    Example: shoal cancel books-1
    """
    _steer(crawl, CrawlState.CANCELLED, places=places)


@click.command(short_help="Change the pace of one host, from the next request on.")
@click.argument("host")
@click.argument("rate")
@crawl_argument
@place_options(store=False)
def pace(host: str, rate: str, crawl: str | None, *, places: Places) -> None:
    """Change the pace of one host, from the next request on.

    Requests to the host via a pool have a pace of their own, over all exits of the pool: "example.com via POOL".

    \b
    Example: shoal pace example.com 30/m books-1
             shoal pace "example.com via residential" 2/s
    """
    from shoal.cli.loop import run

    run(_pace(host, rate, crawl, places=places))


def lane_given(host: str) -> str:
    """The lane of a host, a host with its port, or a URL; with " via POOL" after it, the lane via that pool."""
    from shoal.urls import canonical, lane_of

    host, via, pool = host.partition(VIA)
    try:
        return lane_of(canonical(host if "://" in host else f"https://{host}/")) + via + pool
    except UsageError:
        raise UsageError(f"{host!r} is no host: write it as example.com or example.com:8080") from None


def _steer(crawl: str | None, state: CrawlState, *, places: Places) -> None:
    from shoal.cli.loop import run

    run(_set_state(crawl, state, places=places))


async def _set_state(name: str | None, state: CrawlState, *, places: Places) -> None:
    from shoal.cli.which import chosen_crawl
    from shoal.processes.stats import spent_budget

    async with chosen_crawl(places, name) as (frontier, crawl):
        former = await frontier.progress(crawl.id)
        before = former.state
        if before is CrawlState.FINISHED:
            raise UsageError(f"{crawl.id} is finished: there is nothing to {_VERBS[state]}")
        if state is CrawlState.RUNNING and (spent := spent_budget(crawl, former)):
            raise UsageError(f"{crawl.id}: {spent}")
        await frontier.set_state(crawl.id, state)
        progress = await frontier.progress(crawl.id)
    said = f"{crawl.id} is {progress.state}: {several(progress.left, 'task')} left"
    if state is CrawlState.CANCELLED:
        set_aside = several(progress.cancelled, "task")
        said = f"{crawl.id} is {progress.state}: {set_aside} set aside, {progress.leased:,} in flight"
    if state is CrawlState.RUNNING and before is not state:
        said += f"; {RUN_AGAIN}"
    Screen().line(said)


async def _pace(host: str, rate: str, name: str | None, *, places: Places) -> None:
    from shoal.cli.which import chosen_crawl
    from shoal.policy.politeness import lent_interval
    from shoal.processes.stats import describe_interval
    from shoal.settings import parse_rate

    lane, interval = lane_given(host), lent_interval(parse_rate(rate))
    async with chosen_crawl(places, name) as (frontier, crawl):
        _check_pool(lane, crawl)
        await frontier.update_lane(crawl.id, lane, LaneUpdate(interval=interval, base_interval=interval))
    Screen().line(f"{crawl.id}: {lane} at {describe_interval(interval)} from the next request on")
    if crawl.pools and VIA not in lane:
        Screen().line(
            f'requests to it via a pool have their own pace: shoal pace "{lane}{VIA}{crawl.pools[0].name}" {rate}'
        )


def _check_pool(lane: str, crawl: Crawl) -> None:
    """Refuse a pool that the crawl does not have: pacing it would do nothing."""
    _, via, pool = lane.partition(VIA)
    names = [known.name for known in crawl.pools]
    if via and pool not in names:
        raise UsageError(f"{crawl.id} has no pool {pool!r}, only {', '.join(names) or 'direct requests'}")


_VERBS = {CrawlState.PAUSED: "pause", CrawlState.RUNNING: "resume", CrawlState.CANCELLED: "cancel"}
