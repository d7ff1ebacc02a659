"""`shoal schedule`: schedules and their runs; run, pause and resume them through the coordinator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.cli.crawl_stores import has_frontier
from shoal.cli.display.numbers import duration, moment
from shoal.cli.display.screen import Screen
from shoal.cli.options import json_option, place_options
from shoal.settings.table import CONFIG_FILE
from shoal.version import install_command

if TYPE_CHECKING:
    from shoal.crawl.opening import Places
    from shoal.duties.schedules.config import Schedule
    from shoal.duties.schedules.orders import ScheduledRun
    from shoal.duties.schedules.views import Overview, ScheduleShown
    from shoal.frontier.base import Frontier

HOW = "write [[schedules]] into shoal.toml and start `shoal serve --spiders FOLDER`"
ANSWER_SECONDS = 30.0
POLL_SECONDS = 0.2
Act = Callable[["Frontier", "Overview"], Awaitable[Any]]


@click.group(short_help="Repeated runs: list, run now, pause.")
def schedule() -> None:
    """Repeated runs: list, run now, pause.

    \b
    Example: shoal schedule list
    """


@schedule.command("list", short_help="Show the schedules, when each runs next, and how its last run ended.")
@place_options(store=False, exists=False)
@json_option
def list_(*, places: Places, as_json: bool) -> None:
    """Show the schedules, when each runs next, and how its last run ended. A mistake in shoal.toml is an error.

    \b
    Example: shoal schedule list --frontier redis://queue.internal/0
    """
    found = _act(places, None) if has_frontier(places) else _of_file()
    screen = Screen()
    if as_json:
        screen.json(list(found.schedules.values()))
        return
    if not found.schedules:
        screen.line(f"there are no schedules: {HOW}")
        return
    columns = ("schedule", "state", "when", "next, in its zone", "next, UTC", "last run")
    rows = [
        (one.name, one.state, when(one), one.next_local, one.next_utc.removesuffix("+00:00"), last_run(one))
        for one in found.schedules.values()
    ]
    screen.table(columns, rows, whole=("schedule", "state"))
    _say_nobody(found, screen)


@schedule.command(short_help="Show the last runs of a schedule, newest first.")
@click.argument("name")
@place_options(store=False)
@json_option
def history(name: str, *, places: Places, as_json: bool) -> None:
    """Show the last runs of a schedule, newest first: when each was due, its crawl, how it ended and why.

    \b
    Example: shoal schedule history books-daily
    """
    found = _act(places, None)
    found.get(name)
    runs = found.runs(name)
    screen = Screen()
    if as_json:
        screen.json(runs)
        return
    if not runs:
        screen.line(f"{name} has not run yet")
        return
    columns = ("due", "state", "crawl", "started", "took", "why")
    screen.table(columns, [_row(run) for run in runs], whole=("due", "state"))


@schedule.command(short_help="Run a schedule now.")
@click.argument("name")
@place_options(store=False)
@json_option
def run(name: str, *, places: Places, as_json: bool) -> int:
    """Run a schedule now, even while it is paused; its next run stays as planned. Returns 1 if it does not start.

    \b
    Example: shoal schedule run books-daily
    """
    run: ScheduledRun = _act(places, lambda frontier, found: _run(frontier, found, name))
    screen = Screen()
    if as_json:
        screen.json(run)
    else:
        why = f": {run.reason}" if run.reason else ""
        screen.line(f"{name}: {run.crawl or 'its run'} is {run.state}{why}")
    return int(run.state in ("failed", "skipped"))


@schedule.command(short_help="Pause a schedule: no more runs start.")
@click.argument("name")
@place_options(store=False)
@json_option
def pause(name: str, *, places: Places, as_json: bool) -> None:
    """Pause a schedule: no more runs start until `shoal schedule resume`. A run in progress continues.

    \b
    Example: shoal schedule pause books-daily
    """
    _set_paused(name, places, paused=True, as_json=as_json)


@schedule.command(short_help="Resume a paused schedule.")
@click.argument("name")
@place_options(store=False)
@json_option
def resume(name: str, *, places: Places, as_json: bool) -> None:
    """Resume a paused schedule with the next run that is due; runs missed during the pause are not repeated.

    \b
    Example: shoal schedule resume books-daily
    """
    _set_paused(name, places, paused=False, as_json=as_json)


def when(one: ScheduleShown) -> str:
    """When a schedule runs, as written in shoal.toml."""
    return f"every {duration(one.every)}" if one.every else f"{one.cron} {one.timezone}"


def last_run(one: ScheduleShown) -> str:
    """The state of the last run."""
    run = one.current or one.last
    if run is None:
        return "none yet"
    number = f" {run.number} times" if run.number > 1 else ""
    parts = [f"{run.state}{number}", run.crawl, moment(run.ended or run.started or run.due)]
    return " ".join([*(part for part in parts if part), *([f"({run.reason})"] if run.reason else [])])


def _row(run: ScheduledRun) -> tuple[str, ...]:
    number = f" {run.number} times" if run.number > 1 else ""
    started = moment(run.started) if run.started else ""
    took = duration(max(0.0, run.ended - run.started)) if run.started and run.ended else ""
    return moment(run.due), f"{run.state}{number}", run.crawl, started, took, run.reason


def _set_paused(name: str, places: Places, *, paused: bool, as_json: bool) -> None:
    from shoal.duties.schedules.orders import change_orders, with_pause

    async def act(frontier: Frontier, found: Overview) -> Overview:
        found.get(name)
        await change_orders(frontier, lambda orders: with_pause(orders, name, paused=paused))
        return found

    found = _act(places, act)
    screen = Screen()
    if as_json:
        screen.json({"schedule": name, "paused": paused})
        return
    screen.line(f"{name} is {'paused' if paused else 'resumed'}")
    _say_nobody(found, screen)


def _say_nobody(found: Overview, screen: Screen) -> None:
    from shoal.duties.schedules.views import NOBODY

    if not found.is_run:
        screen.say(f"{NOBODY}, none starts until there is one")


def _filed() -> dict[str, Schedule]:
    from importlib.util import find_spec

    from shoal.duties.schedules.config import load_schedules
    from shoal.errors import UsageError

    if find_spec("cronsim") is None:
        raise UsageError(f"schedules need `shoal serve`: {install_command('serve')}")
    return load_schedules(Path(CONFIG_FILE))


def _of_file() -> Overview:
    """The schedules of shoal.toml, if there is no frontier yet."""
    import time

    filed = _filed()
    from shoal.duties.schedules.orders import Notes, Orders
    from shoal.duties.schedules.views import overview_of

    return overview_of(filed, notes=Notes(), orders=Orders(), is_run=False, now=time.time())


def _act(places: Places, act: Act | None) -> Any:
    """The result of `act(frontier, overview)`; without an act, the overview."""
    from shoal.cli.loop import run as run_loop

    filed = _filed()

    async def acting() -> Any:
        import time

        from shoal.crawl.opening import frontier_at
        from shoal.duties.schedules.views import overview

        async with frontier_at(places.frontier) as frontier:
            found = await overview(frontier, filed, clock=time.time)
            return found if act is None else await act(frontier, found)

    return run_loop(acting())


async def _run(frontier: Frontier, found: Overview, name: str) -> ScheduledRun:
    """Request a run and wait until a coordinator has begun or refused it."""
    import asyncio
    import time
    import uuid

    from shoal.duties.schedules.orders import change_orders, with_run
    from shoal.duties.schedules.views import NOBODY, overview
    from shoal.errors import UsageError

    found.get(name)
    if not found.is_run:
        raise UsageError(f"{name} cannot run now: {NOBODY}")
    key = uuid.uuid4().hex[:8]
    await change_orders(frontier, lambda orders: with_run(orders, name, at=time.time(), key=key))
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        await asyncio.sleep(POLL_SECONDS)
        now = await overview(frontier, {}, clock=time.time)
        mine = next((run for run in now.runs(name) if run.run.endswith(f"-{key}")), None)
        if mine is not None and mine.state != "starting":
            return mine
    raise UsageError(f"{name} was requested but has not begun within {ANSWER_SECONDS:g} s: see its history later")
