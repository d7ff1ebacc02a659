"""Changes the state of a crawl, for `shoal pause`, `resume` and `cancel`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from shoal.cli.display.numbers import several
from shoal.cli.display.screen import Screen
from shoal.errors import UsageError
from shoal.model import CrawlState

if TYPE_CHECKING:
    from shoal.crawl.opening import Places

STEERED = ("crawl", "state", "left", "in_flight", "cancelled")
RUN_AGAIN = "a running worker continues it; if there is none, repeat the command that began it"


class Steered(msgspec.Struct, frozen=True, kw_only=True):
    """A crawl after the change, for scripts: its tasks left, in flight and set aside."""

    crawl: str
    state: CrawlState
    left: int
    in_flight: int
    cancelled: int


def steer(crawl: str | None, state: CrawlState, *, places: Places, as_json: bool, yes: bool = False) -> None:
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
    from shoal.cli.crawl_choice import ask_if_others_work_on, chosen_crawl
    from shoal.cli.display.next_commands import run_again
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
