"""`shoal top`: a live view of crawls."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from shoal.cli.display.screen import Screen
from shoal.cli.options import crawl_argument, place_options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from shoal.crawl.opening import Places
    from shoal.frontier.base import Frontier
    from shoal.insight.stats import Snapshot
    from shoal.run.coordinator import Coordinator

REFRESH_SECONDS = 0.5
LANES_SHOWN = 8
WORKERS_SHOWN = 12


@click.command(short_help="Watch the unfinished crawls live; q quits.")
@crawl_argument
@place_options()
def top(crawl: str | None, *, places: Places) -> None:
    """Watch the unfinished crawls live, or one crawl; q or Ctrl-C quits.

    \b
    Example: shoal top books-1
    """
    from shoal.cli.loop import run

    run(_top(crawl, places=places))


async def _top(name: str | None, *, places: Places) -> None:
    from shoal.cli.display.progress import line_of
    from shoal.crawl.opening import frontier_at

    screen = Screen()
    async with frontier_at(places.frontier) as frontier:
        watchers: dict[str, Coordinator] = {}
        if screen.out.is_terminal:
            await _watch(name, screen, frontier=frontier)
            return
        for snapshot in await _snapshots(name, watchers, frontier=frontier, say=screen.say):
            screen.line(line_of(snapshot))


async def _watch(name: str | None, screen: Screen, *, frontier: Frontier) -> None:
    from rich.live import Live

    watchers: dict[str, Coordinator] = {}
    leave = asyncio.Event()
    with _keys(leave), Live(console=screen.out, screen=True, auto_refresh=False) as live:
        while not leave.is_set():
            refused: list[str] = []
            snapshots = await _snapshots(name, watchers, frontier=frontier, say=refused.append)
            live.update(_page(snapshots, refused), refresh=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await leave.wait()


async def _snapshots(
    name: str | None, watchers: dict[str, Coordinator], *, frontier: Frontier, say: Callable[[str], None]
) -> list[Snapshot]:
    """A snapshot of each shown crawl. Watchers are kept between calls to measure the rate."""
    from shoal.cli.crawl_choice import choose_all
    from shoal.crawl.record import is_unfinished
    from shoal.run.coordinator import Coordinator

    crawls = choose_all(await frontier.crawls(), name, say=say)
    shown = crawls if name is not None else [crawl for crawl in crawls if is_unfinished(crawl.state)]
    snapshots = []
    for crawl in shown or crawls[:1]:
        if crawl.id not in watchers:
            watchers[crawl.id] = Coordinator(crawl, frontier=frontier, show=lambda _: None, say=lambda _: None)
        # The current record: the priority may have changed.
        snapshots.append(replace(await watchers[crawl.id].snapshot(), crawl=crawl))
    return snapshots


def _page(snapshots: list[Snapshot], refused: Sequence[str] = ()) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from shoal.cli.display.lines import shown
    from shoal.cli.display.progress import picture
    from shoal.cli.display.tables import LANE_COLUMNS, WORKER_COLUMNS, LiveTable, lane_rows, reason_lines, worker_rows

    parts: list[RenderableType] = []
    for snapshot in snapshots:
        parts += [picture(snapshot), Text()]
        if snapshot.lanes:
            lanes = snapshot.lanes[:LANES_SHOWN]
            reasons = [Text(shown(line), style="dim") for line in reason_lines(lanes, snapshot.crawl)]
            parts += [LiveTable(LANE_COLUMNS, lane_rows(lanes)), *reasons, Text()]
        if snapshot.workers:
            parts += [LiveTable(WORKER_COLUMNS, worker_rows(snapshot.workers[:WORKERS_SHOWN])), Text()]
    parts += [Text(shown(line), style="yellow") for line in refused]
    return Group(*parts, Text("q quits", style="dim"))


@contextlib.contextmanager
def _keys(leave: asyncio.Event) -> Iterator[None]:
    """Set `leave` on q, Ctrl-C or SIGTERM; restores the terminal afterwards."""
    import termios
    import tty

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leave.set)
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, _read_key, descriptor, leave)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _read_key(descriptor: int, leave: asyncio.Event) -> None:
    import os

    key = os.read(descriptor, 64)
    if not key or b"q" in key.lower():
        leave.set()
