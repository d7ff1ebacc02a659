"""`shoal chaos`: kills workers and servers during a crawl on this machine, then checks every page."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click
from rich.live import Live
from rich.text import Text

from shoal.cli.display.numbers import count, duration
from shoal.cli.display.screen import Screen
from shoal.cli.options import checked_place, json_option
from shoal.errors import ShoalError, UsageError
from shoal.settings.table import EXITS_VARIABLE, PLACE_VARIABLES
from shoal.text.near_names import did_you_mean

if TYPE_CHECKING:
    from shoal.testing.chaos.plan import Deed
    from shoal.testing.chaos.report import Report

ALL_DEEDS = "all"


def _checked_pipe(context: click.Context, option: click.Parameter, url: str | None) -> str | None:
    from shoal.testing.chaos.servers import OWN_RABBITMQ

    if url and url != OWN_RABBITMQ:
        from shoal.pipes import open_pipe

        open_pipe(url)
    return url


@click.command(short_help="Kill workers during a crawl, and check that nothing is lost.")
@click.option(
    "--frontier",
    metavar="URL",
    callback=checked_place,
    help="Where the tasks are; `redis`: start a server, which is attacked, too.  [default: a new file]",
)
@click.option(
    "--store",
    metavar="URL",
    callback=checked_place,
    help="Where items go; `postgres`: start a server, which is attacked, too.  [default: a new file]",
)
@click.option(
    "--pipe",
    metavar="URL",
    callback=_checked_pipe,
    help="Workers behind a pipe; `amqp`: start a broker, which is attacked, too.  [default: none]",
)
@click.option(
    "--deeds",
    metavar="NAMES",
    default=ALL_DEEDS,
    show_default=True,
    help="What to do, separated by commas: kill, freeze, late, restart, stall, reset, clock, feed, deadly, hang,"
    " backend, store-restart, broker, coordinator.",
)
@click.option(
    "--kills", metavar="N", type=click.IntRange(0, 1000), default=10, show_default=True, help="Workers to kill."
)
@click.option(
    "--workers", metavar="N", type=click.IntRange(2, 64), default=3, show_default=True, help="Worker processes."
)
@click.option(
    "--crawls",
    metavar="N",
    type=click.IntRange(1, 8),
    default=1,
    show_default=True,
    help="Crawls at the same time, each with its own spider and workers.",
)
@click.option(
    "--pages", metavar="N", type=click.IntRange(100, 1_000_000), help="Pages of the site.  [default: 180 per kill]"
)
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(0),
    help="Decides what is done when; the report shows it.  [default: random]",
)
@click.option(
    "--runs",
    metavar="N",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="Runs in a row, each with the next seed; the first failed run is the last.",
)
@json_option
def chaos(*, seed: int | None, runs: int, as_json: bool, deeds: str, **options: Any) -> int:
    """Kill workers during a crawl, and check that nothing is lost.

    Crawls a generated site. Workers, a feeder and the servers started for the run are killed, frozen and disconnected;
    some pages kill or hang every worker that handles them. Then every page is checked. Returns 0 only if nothing was
    lost, nothing is stored twice, no page is a dead letter without a reason, and the pace was kept by the site's own
    clock. It ignores SHOAL_FRONTIER, SHOAL_STORE and SHOAL_PIPE, so that it never attacks a production server.

    \b
    Example: shoal chaos --kills 30 --workers 4
    Example: shoal chaos --frontier redis --store postgres --runs 10
             shoal chaos --crawls 2
    """
    from shoal.testing.chaos.report import total

    # Only places on the command line are attacked, never the servers of a fleet that these variables name.
    for variable in (*PLACE_VARIABLES.values(), EXITS_VARIABLE):
        os.environ.pop(variable, None)
    screen = Screen()
    chosen = _chosen(deeds)
    first = random.randrange(10**6) if seed is None else seed  # noqa: S311 -- variety, not secrets
    reports: list[Report] = []
    for number in range(runs):
        reports.append(_one_run(screen, seed=first + number, deeds=chosen, **options))
        if runs > 1:
            last = reports[-1]
            verdict = f"{'kept' if last.is_kept else 'broken'} in {duration(last.seconds)}"
            screen.say(f"run {number + 1} of {runs}, seed {last.seed}: {verdict}")
        if as_json:
            screen.json(reports[-1])
        if not reports[-1].is_kept:
            break
    if not as_json:
        _show(total(reports), screen, runs=len(reports))
    return 0 if reports[-1].is_kept else 1


def _chosen(text: str) -> tuple[Deed, ...]:
    """The deeds with these names."""
    from shoal.testing.chaos.plan import CHOICE

    names = [name.strip() for name in text.split(",") if name.strip()]
    known = {deed.value: deed for deed in CHOICE}
    for name in names:
        if name not in known and name != ALL_DEEDS:
            hint = did_you_mean(name, known, otherwise=f"there are {', '.join(known)}")
            raise UsageError(f"--deeds: there is no deed {name!r}; {hint}")
    return CHOICE if ALL_DEEDS in names or not names else tuple(known[name] for name in names)


def _one_run(screen: Screen, *, seed: int, **options: Any) -> Report:
    """One run in a new folder, which is kept if the run fails."""
    from shoal.cli.loop import run

    folder = Path(tempfile.mkdtemp(prefix="shoal-chaos-"))
    keep_folder = False
    try:
        report = run(_run(folder, screen, seed=seed, **options))
        keep_folder = not report.is_kept
    except ShoalError:
        keep_folder = True
        raise
    finally:
        if keep_folder:
            screen.say(f"the crawl is kept in {folder}")
            screen.say(f"to repeat it: {_again(seed, **options)}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return report


def _again(
    seed: int,
    *,
    frontier: str | None,
    store: str | None,
    pipe: str | None,
    deeds: tuple[Deed, ...],
    **sizes: int | None,
) -> str:
    """The command that repeats the run, as far as timing can be repeated."""
    from shoal.cli.display.next_commands import pasted
    from shoal.testing.chaos.plan import CHOICE

    words = [f"chaos --seed {seed}", *(f"--{name} {size}" for name, size in sizes.items() if size is not None)]
    words += [f"--deeds {','.join(deeds)}"] if deeds != CHOICE else []
    places = [(flag, url) for flag, url in (("--frontier", frontier), ("--store", store), ("--pipe", pipe)) if url]
    return pasted([(" ".join(words), places)])


async def _run(folder: Path, screen: Screen, *, deeds: tuple[Deed, ...], pages: int | None, **options: Any) -> Report:
    from shoal.testing.chaos.plan import Plan, pages_for, with_deeds
    from shoal.testing.chaos.run import run_chaos
    from shoal.testing.chaos.servers import chaos_servers

    places = {name: options.pop(name) for name in ("frontier", "store", "pipe")}
    async with chaos_servers(folder, seed=options["seed"], deeds=deeds, **places) as servers:
        plan = Plan(
            folder=folder,
            frontier=servers.frontier,
            store=servers.store,
            pipe=servers.pipe,
            pages=pages or pages_for(options["kills"]),
            left_out=tuple(why for deed, why in servers.missing.items() if deed in deeds),
            **options,
        )
        plan = with_deeds(plan, deeds, steerable=servers.acts)
        site = f"a site of {count(plan.pages)} pages at {plan.rate}/s per host"
        crawls = "" if plan.crawls == 1 else f" for each of {plan.crawls} crawls"
        screen.say(f"{plan.workers} workers{crawls} crawl {site}; seed {plan.seed}")
        for line in plan.left_out:
            screen.say(f"left out: {line}")
        with Display.on(screen, pages=plan.tasks) as display:
            return await run_chaos(plan, show=display.show, say=screen.say, servers=servers)


class Display:
    """One live line on a terminal; in a pipe a line for each attack."""

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


def _show(report: Report, screen: Screen, *, runs: int) -> None:
    rows = [*_found(report), *(row for row in _done(report) if row[1])]
    width = max(len(count(number)) for _, number, _ in rows)
    screen.pairs((name, f"{count(number).rjust(width)}  {text}") for name, number, text in rows)
    for line in report.left_out:
        screen.line(f"  left out: {line}")
    screen.line()
    times = f" {count(runs)} times" if runs > 1 else ""
    if report.is_kept:
        done = duration(report.seconds)
        screen.line(f"kept{times} in {done}: nothing lost, nothing twice, the pace held", style="bold green")
        return
    which = f" in run {count(runs)}" if runs > 1 else ""
    screen.line(f"broken{which} after {duration(report.seconds)}, with seed {report.seed}", style="bold red")
    for line in [*report.lost_pages, *report.surprises]:
        screen.line(f"  {line}")


def _found(report: Report) -> list[tuple[str, int, str]]:
    pace = f"at most {report.busiest_second} in a second, {report.allowed_second} allowed"
    late = f"late results, refused; {report.late_settles} were late on purpose"
    return [
        ("attempted", report.attempted, _pages(report)),
        ("acknowledged", report.acknowledged, "accepted by the frontier"),
        ("ok", report.ok, "done, with their rows"),
        ("dead", report.dead, "dead letters, as they had to be"),
        ("lost", report.lost, "not done, or without their rows"),
        ("duplicated", report.duplicated, "rows too many"),
        ("recovered", report.recovered, "leases reclaimed from killed and stopped workers"),
        ("charged", report.charged, "attempts used up beyond one per page"),
        ("unexpected", report.unexpected, "other broken promises"),
        ("stale settles", report.stale_settles_refused, late),
        ("pace violations", report.pace_violations, f"by the site's own clock: {pace}"),
    ]


def _pages(report: Report) -> str:
    return "pages of the site" if report.crawls == 1 else f"pages of the site, over {report.crawls} crawls"


def _done(report: Report) -> list[tuple[str, int, str]]:
    return [
        ("kills", report.kills, "workers ended with SIGKILL"),
        ("freezes", report.freezes, "workers stopped past their leases"),
        ("deadly pages", report.deadly_pages, "kill their worker, half of them each time"),
        ("hanging pages", report.hanging_pages, "hang in their handler, half of them each time"),
        ("dead feeders", report.dead_feeders, "killed while they fed, and begun again"),
        ("restarts", report.restarts, "of the queue server"),
        ("stalls", report.stalls, "of the frontier, longer than a lease"),
        ("resets", report.resets, "of all lines to the servers"),
        ("clock steps", report.clock_steps, "of the frontier's clock, by an hour"),
        ("broker restarts", report.brokers, "of the broker, as after a crash"),
        ("coordinators", report.coordinators, "killed and started again"),
        ("backends", report.backends, "of PostgreSQL ended"),
        ("store restarts", report.store_restarts, "of PostgreSQL, as after a crash"),
    ]
