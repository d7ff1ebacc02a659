"""`shoal advise`: the bottleneck of a crawl, what would help, how many workers are worth running."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from shoal.cli.display.screen import Screen
from shoal.cli.options import crawl_argument, json_with, place_options
from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.crawl.opening import Places
    from shoal.insight.advice import Advice
    from shoal.insight.deadline import Plan
    from shoal.model import Crawl
    from shoal.settings.values import MachineSize

MEASURED_SECONDS = 5.0


class AdviceDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Advice and, with --deadline, a plan; for scripts."""

    advice: Advice
    plan: Plan | None = None


@click.command(short_help="The bottleneck of a crawl, and what would help.")
@crawl_argument
@click.option(
    "--for", "seconds", metavar="SECONDS", type=click.FloatRange(1.0, 600.0), default=MEASURED_SECONDS,
    show_default=True, help="How long to measure.",
)  # fmt: skip
@click.option("--deadline", metavar="TIME", help='Also: what it takes to finish within this time, such as "6h".')
@place_options(store=False)
@json_with("advice", "plan")
def advise(crawl: str | None, *, places: Places, seconds: float, deadline: str | None, as_json: bool) -> None:
    """The bottleneck of a crawl right now, and what would help: workers, cores, exits, pace, store. While the crawl
    runs, it is measured for a few seconds.

    \b
    Example: shoal advise books-1 --deadline 6h
    """
    from shoal.cli.loop import run

    run(_advise(crawl, places=places, seconds=seconds, deadline=deadline, as_json=as_json))


async def _advise(name: str | None, *, places: Places, seconds: float, deadline: str | None, as_json: bool) -> None:
    from shoal.backends import is_redis, scheme_of
    from shoal.cli.crawl_choice import chosen_crawl
    from shoal.cli.display.counting import Counting
    from shoal.crawl.inbox_readers import pushed_by_crawl
    from shoal.crawl.opening import inbox_at
    from shoal.insight.advice import advise as advice_on
    from shoal.insight.deadline import plan_for, plan_lines
    from shoal.insight.survey import measured, surveyed
    from shoal.model import CrawlState
    from shoal.settings.values import parse_duration

    limit = parse_duration(deadline) if deadline is not None else 0.0
    if deadline is not None and limit <= 0:
        raise UsageError(f"--deadline {deadline!r}: write a time from now, such as 6h")
    screen = Screen(results_to_stderr=as_json)
    async with chosen_crawl(places, name) as (frontier, crawl):
        machines = _machines(crawl) if limit else []
        before = await surveyed(crawl, frontier=frontier)
        if before.at_work and before.progress.left and before.progress.state is CrawlState.RUNNING:
            with Counting.on(screen) as counting:
                await counting.during(asyncio.sleep(seconds), f"measuring {crawl.id} for {seconds:g} s")
        async with inbox_at(places) as inbox:
            pushed = await pushed_by_crawl([crawl], inbox=inbox)
        now = await surveyed(crawl, frontier=frontier, pushed=pushed.get(crawl.id, 0))
    advice, done = advice_on(before, now), measured(before, now)
    plan = plan_for(now, advice, done, seconds=limit, machines=machines) if limit else None
    if as_json:
        Screen().json(AdviceDocument(advice=advice, plan=plan))
        return
    # A unix socket is reachable only from this machine.
    is_shared = is_redis(places.frontier) and scheme_of(places.frontier) != "unix"
    for line in (*advice.lines, *(plan_lines(plan, deadline, is_shared=is_shared) if plan and deadline else ())):
        screen.line(line)


def _machines(crawl: Crawl) -> list[MachineSize]:
    """Machine sizes from shoal.toml or the environment here, else from the crawl: prices change while crawls run."""
    from shoal.insight.utilisation import settings_of
    from shoal.settings.layers import environment_layer, file_layer, resolve
    from shoal.settings.table import CONFIG_FILE
    from shoal.settings.values import parse_machines

    here = resolve([file_layer(Path(CONFIG_FILE)), environment_layer()])
    is_set = here.origins["machines"] != "default"
    return parse_machines(here.values.machines if is_set else settings_of(crawl).machines)
