"""Lanes and workers as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from shoal.cli.display.lines import shown
from shoal.cli.display.numbers import count, duration, per_second, several, size
from shoal.cli.display.screen import Screen
from shoal.model import LaneStatus, WorkerBeat
from shoal.processes.stats import describe_interval, exits_back, seconds_left

LANES_SHOWN = 10
LANE_COLUMNS = ("lane", "waiting", "in flight", "pace", "next start", "needs")
WORKER_COLUMNS = ("worker", "pages", "rate", "busy", "memory", "version")


def show_lanes(lanes: Sequence[LaneStatus], screen: Screen) -> None:
    """The lanes with most to do."""
    if lanes:
        screen.line()
        screen.table(LANE_COLUMNS, lane_rows(lanes[:LANES_SHOWN]), right=LANE_COLUMNS[1:])
        if len(lanes) > LANES_SHOWN:
            screen.line(f"and {several(len(lanes) - LANES_SHOWN, 'lane')} more")


def show_workers(workers: Sequence[WorkerBeat], screen: Screen) -> None:
    """The workers that are alive."""
    if workers:
        screen.line()
        screen.table(WORKER_COLUMNS, worker_rows(workers), right=WORKER_COLUMNS[1:])


def lane_rows(lanes: Sequence[LaneStatus]) -> list[tuple[str, ...]]:
    return [
        (
            lane.lane,
            count(lane.waiting),
            f"{lane.in_flight} of {lane.cap}",
            describe_interval(lane.interval),
            _next_start(lane),
            duration(seconds_left(lane)) if lane.waiting and lane.interval else "",
        )
        for lane in lanes
    ]


def _next_start(lane: LaneStatus) -> str:
    if lane.starts_in <= 0.05:
        return "now"
    if back := exits_back(lane):
        return f"exits back {back}"
    return f"in {duration(lane.starts_in)}"


def worker_rows(workers: Sequence[WorkerBeat]) -> list[tuple[str, ...]]:
    return [
        (
            worker.worker,
            count(worker.pages),
            per_second(worker.pages_per_second),
            f"{worker.busy} of {worker.slots}",
            size(worker.memory_bytes),
            worker.version,
        )
        for worker in workers
    ]


def live_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table inside a live display: everything but the first column is a number."""
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    for position, name in enumerate(columns):
        table.add_column(name, justify="right" if position else "left", no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    return table
