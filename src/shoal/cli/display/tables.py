"""Tables of lanes and workers."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult

from shoal.cli.display.lines import shown
from shoal.cli.display.numbers import count, duration, per_second, several, size
from shoal.cli.display.screen import Screen, fitting, rich_table
from shoal.insight.bounds import why_so
from shoal.insight.stats import describe_interval, exits_back, seconds_left
from shoal.model import Crawl, Heartbeat, LaneStatus
from shoal.worker.workers import Member, Presence

LANES_SHOWN = 10
REASONS_SHOWN = 3
LANE_COLUMNS = ("lane", "waiting", "in flight", "pace", "next start", "needs")
# Left out in this order on a narrow terminal.
SPARE_COLUMNS = ("version", "machine", "in flight", "next start", "memory", "busy", "needs")
WORKER_COLUMNS = ("worker", "pages", "rate", "busy", "memory", "version")
CREW_COLUMNS = ("worker", "state", "pages", "rate", "busy", "memory", "machine", "version")
CREW_NUMBERS = ("pages", "rate", "busy", "memory", "version")
# Workers that no longer work.
FORMER_SHOWN = 20


def show_lanes(lanes: Sequence[LaneStatus], screen: Screen, *, crawl: Crawl) -> None:
    """The lanes with the most tasks, and why some of them rest or are slow."""
    if lanes:
        screen.line()
        rows = lane_rows(lanes[:LANES_SHOWN])
        screen.table(LANE_COLUMNS, rows, right=LANE_COLUMNS[1:], spare=SPARE_COLUMNS, folds=LANE_COLUMNS[:1])
        if len(lanes) > LANES_SHOWN:
            screen.line(f"and {several(len(lanes) - LANES_SHOWN, 'lane')} more")
        for line in reason_lines(lanes[:LANES_SHOWN], crawl):
            screen.line(line)


def reason_lines(lanes: Sequence[LaneStatus], crawl: Crawl) -> list[str]:
    """Why some of these lanes rest or are slow: a line each, for the first ones."""
    found = ((lane.lane, why_so(lane, crawl)) for lane in lanes)
    return [f"{name}: {why}" for name, why in found if why][:REASONS_SHOWN]


def show_workers(crew: Sequence[Member], screen: Screen, *, now: float) -> None:
    """The workers of a crawl, working ones first."""
    working = sum(member.presence is Presence.WORKING for member in crew)
    listed = crew[: working + FORMER_SHOWN]
    if listed:
        screen.line()
        rows = [_crew_row(member, now) for member in listed]
        screen.table(CREW_COLUMNS, rows, right=CREW_NUMBERS, spare=SPARE_COLUMNS, folds=CREW_COLUMNS[:1])
    if len(crew) > len(listed):
        screen.line(f"and {several(len(crew) - len(listed), 'former worker')} more")


def _crew_row(member: Member, now: float) -> tuple[str, ...]:
    beat = member.beat
    is_working = member.presence is Presence.WORKING
    return (
        beat.worker,
        _state(member, now),
        count(beat.pages),
        per_second(beat.pages_per_second) if member.presence is not Presence.GONE else "",
        f"{beat.busy} of {beat.slots}" if is_working else "",
        size(beat.memory_bytes) if is_working else "",
        beat.host,
        beat.version,
    )


def _state(member: Member, now: float) -> str:
    if member.presence is Presence.GONE:
        return f"gone since {duration(max(0.0, now - member.beat.seen))}"
    return str(member.presence)


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


def worker_rows(workers: Sequence[Heartbeat]) -> list[tuple[str, ...]]:
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


class LiveTable:
    """A table inside a live display, with as many columns as fit. All but the first are numbers."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._columns = columns
        self._rows = [[shown(cell) for cell in row] for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns, width = self._columns, options.max_width
        fit = fitting(columns, self._rows, width=width, spare=SPARE_COLUMNS, folds=columns[:1])
        kept = [index for index, name in enumerate(columns) if name in fit]
        rows = [[row[index] for index in kept] for row in self._rows]
        numbers = [index > 0 for index in kept]
        yield rich_table([columns[index] for index in kept], rows, numbers=numbers, width=width)
