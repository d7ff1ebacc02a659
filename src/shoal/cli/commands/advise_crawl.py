"""`shoal advise`: what bounds a crawl, what would help, how many workers are worth running."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click
import msgspec

from shoal.cli.display.screen import Screen
from shoal.cli.options import crawl_argument, json_with, place_options
from shoal.errors import UsageError
from shoal.model import CrawlState

if TYPE_CHECKING:
    from shoal.processes.advice import Advice, Plan
    from shoal.processes.opening import Places

MEASURED_SECONDS = 5.0


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """Advice with what a deadline takes, for scripts."""

    advice: Advice
    plan: Plan | None = None


@click.command(short_help="What bounds a crawl, and what would help.")
@crawl_argument
@click.option(
    "--for", "seconds", metavar="SECONDS", type=click.FloatRange(1.0, 600.0), default=MEASURED_SECONDS,
    show_default=True, help="How long to measure.",
)  # fmt: skip
@click.option("--deadline", metavar="TIME", help='Also: what it takes to end within that time, such as "6h".')
@place_options(store=False)
@json_with("advice", "plan")
def advise(crawl: str | None, *, places: Places, seconds: float, deadline: str | None, as_json: bool) -> None:
    """What bounds a crawl right now, and what would help: workers, cores, exits, pace, store. It measures for a few
    seconds while the crawl runs.

    \b
    Example: shoal advise books-1 --deadline 6h
    """
    from shoal.cli.loop import run

    run(_advise(crawl, places=places, seconds=seconds, deadline=deadline, as_json=as_json))


async def _advise(name: str | None, *, places: Places, seconds: float, deadline: str | None, as_json: bool) -> None:
    from shoal.cli.display.counting import Counting
    from shoal.cli.which import chosen_crawl
    from shoal.processes.advice import advise as advice_on
    from shoal.processes.advice import plan_for, prices_of
    from shoal.processes.crawl_survey import measured, surveyed
    from shoal.setting_values import parse_duration

    limit = parse_duration(deadline) if deadline is not None else 0.0
    if deadline is not None and limit <= 0:
        raise UsageError(f"--deadline {deadline!r}: write a time from now on, as 6h")
    screen = Screen(results_to_stderr=as_json)
    async with chosen_crawl(places, name) as (frontier, crawl):
        before = await surveyed(crawl, frontier=frontier)
        if before.at_work and before.progress.left:
            with Counting.on(screen) as counting:
                await counting.during(asyncio.sleep(seconds), f"measuring {crawl.id} for {seconds:g} s")
        now = await surveyed(crawl, frontier=frontier)
    advice, done = advice_on(before, now), measured(before, now)
    is_at_work = now.progress.state is CrawlState.RUNNING and bool(now.progress.left and now.at_work)
    plan = plan_for(now, advice, done, seconds=limit, prices=prices_of(crawl)) if limit and is_at_work else None
    if as_json:
        Screen().json(Told(advice=advice, plan=plan))
        return
    for line in (*advice.lines, *_plan_lines(plan, deadline)):
        screen.line(line)


def _plan_lines(plan: Plan | None, deadline: str | None) -> list[str]:
    from shoal.cli.display.numbers import several
    from shoal.exits.figures import money

    if plan is None:
        return []
    if plan.workers is None:
        return [f"within {deadline}: {plan.why}"]
    cores = f"{max(1, round(plan.cores + 0.5))} cores" if plan.cores > 1 else "1 core"
    return [
        f"within {deadline}: {several(plan.workers, 'worker')}, {cores}: about {money(plan.cost)}, on one large machine"
        " or several small ones (price_core and price_gigabyte are settings)"
    ]
