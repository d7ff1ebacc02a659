"""Shows a running crawl: a live display on a terminal, else a line every few seconds."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.cli.display.lines import shown
from shoal.cli.display.numbers import count, duration, per_second, several, size
from shoal.cli.display.screen import GAP, Screen
from shoal.insight.stats import Snapshot, cost_so_far, describe_interval, seconds_left, unserved, unserved_line
from shoal.model import CrawlState
from shoal.policy.failures import asides, set_aside

LINE_SECONDS = 5.0
REFRESHES_PER_SECOND = 4
POLITE_SHARE = 0.9
LAST_SHARE = 0.5
LONG_SECONDS = 60.0
NUMBER_WIDTH = 7
PAUSED = "paused"
STATE_STYLES = {
    CrawlState.RUNNING: "green",
    CrawlState.PAUSED: "yellow",
    CrawlState.CANCELLED: "red",
    CrawlState.STOPPED: "yellow",
}


class Display:
    """Shows snapshots one after another; `say` writes a line without damaging the live display."""

    def __init__(self, screen: Screen, live: Live | None, *, clock: Callable[[], float]) -> None:
        self._screen = screen
        self._live = live
        self._clock = clock
        self._next_line = clock() + LINE_SECONDS

    @classmethod
    @contextmanager
    def on(cls, screen: Screen, *, clock: Callable[[], float] = time.monotonic) -> Iterator[Self]:
        with screen.live(refresh_per_second=REFRESHES_PER_SECOND) as live:
            yield cls(screen, live, clock=clock)

    def show(self, snapshot: Snapshot) -> None:
        """The crawl at this moment."""
        if self._live is not None:
            self._live.update(picture(snapshot))
        elif self._clock() >= self._next_line:
            self._next_line = self._clock() + LINE_SECONDS
            self._screen.say(line_of(snapshot))

    def say(self, line: str) -> None:
        """One message."""
        self._screen.say(line)


def line_of(snapshot: Snapshot) -> str:
    """A snapshot in one line, for a log."""
    progress = snapshot.progress
    parts = [
        f"{snapshot.crawl.id} {progress.state}",
        f"{count(progress.done)} done" if progress.done or not progress.visits else "",
        f"{several(progress.visits, 'visit')} made, {count(progress.delayed)} due later" if progress.visits else "",
        f"{count(progress.queued)} queued",
        f"{count(progress.leased)} in flight",
        per_second(snapshot.rate) if progress.left else "",
        several(progress.retried, "retry"),
        f"{count(progress.dead)} dead",
        f"{several(sum(asides(progress).values()), 'record')} set aside" if asides(progress) else "",
        # With `revisit` a crawl runs until it is stopped.
        f"{time_left(snapshot)} left" if progress.left and not progress.visits else "",
        cost_so_far(snapshot.crawl, progress),
        held_by(snapshot) if progress.left else snapshot.bound if progress.feeding else "",
        *troubles(snapshot)[:1],
    ]
    return ", ".join(part for part in parts if part)


def held_by(snapshot: Snapshot) -> str:
    """The bottleneck of the crawl, or why it is paused."""
    return snapshot.bound if snapshot.bound.startswith(PAUSED) else f"bound by {snapshot.bound}"


def troubles(snapshot: Snapshot) -> list[str]:
    """The troubles of the workers, each once, and tasks that no worker can do."""
    found = Counter(line for worker in snapshot.workers for line in worker.troubles if line not in snapshot.bound)
    lines = [line if number == 1 else f"{line} ({number} workers)" for line, number in found.items()]
    # Without any worker, `bound` says so.
    if snapshot.workers and (lacking := unserved(snapshot.progress, snapshot.workers)):
        line = unserved_line(lacking, snapshot.crawl, snapshot.workers)
        lines = [*([] if line in snapshot.bound else [line]), *lines]
    return lines


def picture(snapshot: Snapshot, *, elapsed: float | None = None) -> RenderableType:
    """A snapshot as a few lines. elapsed: replaces the snapshot's own."""
    parts: list[RenderableType] = [
        _head(snapshot, snapshot.elapsed if elapsed is None else elapsed),
        _bar(snapshot),
        _counts(snapshot),
    ]
    bound = snapshot.bound if snapshot.progress.left else ""
    is_paused = snapshot.progress.state is CrawlState.PAUSED
    for label, text in (
        ("priority", str(snapshot.crawl.priority or "")),
        (PAUSED if is_paused else "bound by", bound.removeprefix(PAUSED).lstrip(": ")),
        *(("trouble", line) for line in troubles(snapshot)),
        ("records", set_aside(snapshot.progress)),
        ("last", last_lane(snapshot)),
        ("cost", cost_so_far(snapshot.crawl, snapshot.progress).removeprefix("cost ")),
        ("workers", _workers(snapshot)),
    ):
        if text:
            parts.append(Text(f"{label:9}", style="dim").append(shown(text), style="default"))
    return Group(*parts)


def time_left(snapshot: Snapshot) -> str:
    """The time left for the known tasks."""
    return "unknown" if snapshot.eta_seconds is None else duration(math.ceil(snapshot.eta_seconds))


def last_lane(snapshot: Snapshot) -> str:
    """The lanes that finish last, if their pace decides how long the crawl takes."""
    lanes, whole = snapshot.last_lanes, snapshot.eta_seconds or 0.0
    if not lanes or not whole or seconds_left(lanes[0]) < POLITE_SHARE * whole:
        return ""
    least = max(LONG_SECONDS, LAST_SHARE * whole)
    return ", ".join(
        f"{lane.lane} needs {duration(seconds_left(lane))} at {describe_interval(lane.interval)}"
        for lane in lanes
        if lane.waiting > 1 and seconds_left(lane) >= least
    )


def _head(snapshot: Snapshot, elapsed: float) -> Table:
    state = snapshot.progress.state
    left = Text(shown(snapshot.crawl.id), style="bold").append(f"  {state}", style=STATE_STYLES.get(state, "cyan"))
    line = Table.grid(expand=True)
    line.add_column()
    line.add_column(justify="right")
    line.add_row(left, Text(duration(elapsed), style="dim"))
    return line


def _bar(snapshot: Snapshot) -> Table:
    """The share of known tasks that is done; more tasks may be found."""
    known, left = snapshot.progress.known, snapshot.progress.left
    line = Table.grid(expand=True, padding=(0, 2, 0, 0))
    line.add_column(ratio=1)
    line.add_column(justify="right")
    share = (known - left) / max(known, 1)
    line.add_row(ProgressBar(total=1.0, completed=share, finished_style="green"), f"{math.floor(share * 100)} %")
    return line


def _counts(snapshot: Snapshot) -> RenderableType:
    progress = snapshot.progress
    columns = [
        ("done", count(progress.done), "green"),
        ("queued", count(progress.queued), ""),
        ("delayed", count(progress.delayed), ""),
        ("in flight", count(progress.leased), ""),
        ("pages", per_second(snapshot.rate), "bold"),
        ("retries", count(progress.retried), "yellow" if progress.retried else ""),
        ("dead", count(progress.dead), "red" if progress.dead else ""),
        ("time left", time_left(snapshot), ""),
    ]
    return _Counts(columns)


class _Counts:
    """Numbers under their names, in as many rows as the terminal needs."""

    def __init__(self, columns: Sequence[tuple[str, str, str]]) -> None:
        self._columns = columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # A fixed width keeps the columns still while the numbers grow.
        widths = [max(NUMBER_WIDTH, len(name), len(value)) for name, value, _ in self._columns]
        per_row = max(1, (options.max_width + GAP) // (max(widths) + GAP))
        if sum(widths) + GAP * (len(widths) - 1) <= options.max_width:
            per_row = len(widths)
        for first in range(0, len(widths), per_row):
            table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
            shown_now = list(zip(self._columns, widths, strict=True))[first : first + per_row]
            for (name, _, style), width in shown_now:
                table.add_column(name, justify="right", style=style, min_width=width, no_wrap=True)
            table.add_row(*(value for (_, value, _), _ in shown_now))
            yield table


def _workers(snapshot: Snapshot) -> str:
    workers = snapshot.workers
    if not workers:
        return ""
    busy, slots = sum(worker.busy for worker in workers), sum(worker.slots for worker in workers)
    memory = size(sum(worker.memory_bytes for worker in workers))
    return f"{len(workers)}, {busy} of {several(slots, 'slot')} busy, {memory} of memory"
