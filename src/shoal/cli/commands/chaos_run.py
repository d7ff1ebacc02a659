"""`shoal chaos`: proves on this machine that crashes lose nothing."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click
import msgspec
from rich.live import Live
from rich.text import Text

from shoal.cli.display.numbers import count, duration
from shoal.cli.display.screen import Screen
from shoal.cli.options import checked_place, json_option
from shoal.errors import ShoalError

if TYPE_CHECKING:
    from shoal.testing.chaos.attack import Restart
    from shoal.testing.chaos.plan import Plan
    from shoal.testing.chaos.report import Report

OWN_REDIS = "redis"
KILLS_PER_RESTART = 5


@click.command(short_help="Kill workers while they work, and prove that nothing is lost.")
@click.option(
    "--frontier",
    metavar="URL",
    callback=checked_place,
    help="Where the tasks are; just redis: a server of its own, which is killed, too.  [default: a file of its own]",
)
@click.option(
    "--kills", metavar="N", type=click.IntRange(0, 1000), default=10, show_default=True, help="Workers to kill."
)
@click.option(
    "--workers", metavar="N", type=click.IntRange(2, 64), default=3, show_default=True, help="Worker processes."
)
@click.option(
    "--pages", metavar="N", type=click.IntRange(100, 1_000_000), help="Pages of the site.  [default: 180 per kill]"
)
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(0),
    help="Decides what is killed when; the report names it.  [default: any]",
)
@json_option
def chaos(*, seed: int | None, as_json: bool, **options: Any) -> int:
    """Kill workers while they work, and prove that nothing is lost.

    Crawls a site of its own, of which every page is known, kills workers with SIGKILL, stops one for longer than its
    leases last, and then looks up every page. Exit code 0 only if nothing was lost, nothing is stored twice, and the
    pace was kept by the site's own clock.

    \b
    Example: shoal chaos --kills 30 --workers 4
    """
    from shoal.cli.loop import run

    screen = Screen()
    folder = Path(tempfile.mkdtemp(prefix="shoal-chaos-"))
    chosen = random.randrange(10**6) if seed is None else seed  # noqa: S311 -- variety, not secrets
    keep_folder = False
    try:
        report = run(_run(folder, screen, seed=chosen, **options))
        keep_folder = not report.is_kept
    except ShoalError:
        keep_folder = True
        raise
    finally:
        if keep_folder:
            screen.say(f"the crawl is kept in {folder}")
            screen.say(f"the same again: {_again(chosen, **options)}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        screen.json(report)
    else:
        _show(report, screen)
    return 0 if report.is_kept else 1


def _again(seed: int, *, frontier: str | None, pages: int | None, kills: int, workers: int) -> str:
    """The command that kills the same workers at the same moments, as far as a machine can repeat that."""
    from shoal.cli.next_commands import pasted

    line = f"chaos --seed {seed} --kills {kills} --workers {workers}{f' --pages {pages}' if pages else ''}"
    return pasted([(line, [("--frontier", frontier)] if frontier else [])])


async def _run(folder: Path, screen: Screen, *, frontier: str | None, pages: int | None, **options: Any) -> Report:
    from shoal.testing.chaos.plan import Plan, pages_for
    from shoal.testing.chaos.queue_server import redis_server

    pages = pages or pages_for(options["kills"])
    plan = Plan(folder=folder, frontier=frontier or str(folder / "shoal.db"), pages=pages, **options)
    if frontier != OWN_REDIS:
        return await _watched(plan, screen)
    async with redis_server(folder, seed=plan.seed) as (url, restart):
        restarts = max(1, plan.kills // KILLS_PER_RESTART)
        return await _watched(msgspec.structs.replace(plan, frontier=url, restarts=restarts), screen, restart=restart)


async def _watched(plan: Plan, screen: Screen, *, restart: Restart | None = None) -> Report:
    from shoal.testing.chaos.attack import Audience, run_chaos

    site = f"a site of {count(plan.pages)} pages at {plan.rate}/s per host"
    screen.say(f"{plan.workers} workers crawl {site}; seed {plan.seed}")
    with Display.on(screen, pages=plan.pages) as display:
        return await run_chaos(plan, audience=Audience(show=display.show, say=screen.say), restart=restart)


class Display:
    """One live line on a terminal; in a pipe a line for every attack."""

    def __init__(self, screen: Screen, live: Live | None, *, pages: int) -> None:
        self._screen = screen
        self._live = live
        self._pages = count(pages)
        self._doing = ""

    @classmethod
    @contextmanager
    def on(cls, screen: Screen, *, pages: int) -> Iterator[Self]:
        with screen.live() as live:
            yield cls(screen, live, pages=pages)

    def show(self, done: int, doing: str) -> None:
        """The crawl at this moment."""
        if self._live is not None:
            self._live.update(Text().append(f"{count(done)} of {self._pages} done  ", style="dim").append(doing))
        elif doing != self._doing:
            self._screen.say(f"{count(done)} of {self._pages} done: {doing}")
        self._doing = doing


def _show(report: Report, screen: Screen) -> None:
    pace = f"at most {report.busiest_second} in a second, {report.allowed_second} allowed"
    rows: list[tuple[str, int, str]] = [
        ("attempted", report.attempted, "pages of the site"),
        ("acknowledged", report.acknowledged, "accepted by the frontier"),
        ("ok", report.ok, "done, with their rows"),
        ("lost", report.lost, "not done, or without their rows"),
        ("duplicated", report.duplicated, "rows too many"),
        ("recovered", report.recovered, "leases reclaimed from killed and stopped workers"),
        ("unexpected", report.unexpected, "other broken promises"),
        (
            "stale settles",
            report.stale_settles_refused,
            f"late results, refused; {report.late_settles} were late on purpose",
        ),
        ("pace violations", report.pace_violations, f"by the site's own clock: {pace}"),
        ("kills", report.kills, "workers ended with SIGKILL"),
        ("freezes", report.freezes, "workers stopped past their leases"),
        ("restarts", report.restarts, "of the queue server"),
    ]
    width = max(len(count(number)) for _, number, _ in rows)
    screen.pairs((name, f"{count(number).rjust(width)}  {text}") for name, number, text in rows)
    screen.line()
    if report.is_kept:
        done = duration(report.seconds)
        screen.line(f"kept in {done}: nothing lost, nothing twice, the pace held", style="bold green")
        return
    screen.line(f"broken in {duration(report.seconds)}, with seed {report.seed}", style="bold red")
    for line in [*report.lost_pages, *report.surprises]:
        screen.line(f"  {line}")
