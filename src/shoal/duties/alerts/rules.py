"""The rules of alerts: what is worth an alert in a crawl, on a disk, of a schedule or a sink. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from shoal.duties.alerts.config import AlertRules
from shoal.duties.schedules.orders import ScheduledRun, ScheduleState
from shoal.exits.figures import money
from shoal.model import Crawl, CrawlState, Point, Progress
from shoal.store.base import COUNTED, SinkState
from shoal.text.errors import several
from shoal.worker.workers import Member, Presence

PARTS: Final = 5
LEAST_ATTEMPTS: Final = 20
A_DAY: Final = 86_400.0
WORKERS_NAMED: Final = 3
STORE_OUTAGES: Final = ("the store: waiting", "the disk of the store is full")


class Disk(NamedTuple):
    """A disk of this machine that has files of a crawl."""

    path: str
    free: int
    total: int


class WatchedCrawl(msgspec.Struct, frozen=True, kw_only=True):
    """A crawl at one moment. `points` are its history, oldest first; `write_seconds` is the mean time of recent writes
    to its store, None without writes."""

    crawl: Crawl
    progress: Progress
    now: float
    points: Sequence[Point] = ()
    crew: Sequence[Member] = ()
    write_seconds: float | None = None

    @property
    def is_running(self) -> bool:
        return self.progress.state is CrawlState.RUNNING


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A reason for an alert, in one line. `about`: its disk, schedule or sink, if it is not about a crawl."""

    alert: str
    crawl: str = ""
    about: str = ""
    text: str

    @property
    def key(self) -> str:
        return f"{self.alert}/{self.crawl}/{self.about}"


def findings_of(watched: WatchedCrawl, rules: AlertRules) -> list[Finding]:
    """The findings about a crawl."""
    found = []
    for name, look in RULES.items():
        if getattr(rules, name) is not None and (text := look(watched, rules)):
            found.append(Finding(alert=name, crawl=watched.crawl.id, text=f"{watched.crawl.id}: {text}"))
    return found


def disk_findings(disks: Iterable[Disk], rules: AlertRules) -> list[Finding]:
    """Disks that are nearly full."""
    least = rules.disk_free
    return [
        Finding(
            alert="disk_free", about=disk.path, text=f"only {_percent(disk.free / disk.total)} of {disk.path} is free"
        )
        for disk in disks
        if least is not None and disk.total and disk.free / disk.total < least
    ]


def schedule_findings(states: Mapping[str, ScheduleState], rules: AlertRules) -> list[Finding]:
    """Schedules whose last run failed, was interrupted, or was missed because nobody could start it."""
    if not rules.schedule_failed:
        return []
    last = {name: state.last for name, state in states.items()}
    return [
        Finding(alert="schedule_failed", about=name, text=f"schedule {name}: {_run_text(run)}")
        for name, run in last.items()
        if run is not None and run.state in ("failed", "interrupted", "missed")
    ]


def sink_findings(sinks: Iterable[SinkState], rules: AlertRules, *, now: float) -> list[Finding]:
    """Sinks for which a change has waited too long."""
    return [
        Finding(
            alert="sink_behind",
            about=f"{sink.place.spider} {sink.place.url}",
            text=f"the sink {sink.place.url} of {sink.place.spider} is behind: {_behind_text(sink, now=now)}",
        )
        for sink in sinks
        if rules.sink_behind is not None and sink.waiting and now - sink.oldest > rules.sink_behind
    ]


def _behind_text(sink: SinkState, *, now: float) -> str:
    least = "at least " if sink.waiting >= COUNTED else ""
    waiting = f"{least}{several(sink.waiting, 'change')} wait{'s' if sink.waiting == 1 else ''}"
    return f"{waiting}, the oldest for {_time(now - sink.oldest)}{f': {sink.trouble}' if sink.trouble else ''}"


def _run_text(run: ScheduledRun) -> str:
    name = several(run.number, "run") if run.number > 1 else run.crawl or f"run {run.run}"
    return f"{name} {run.state}{f': {run.reason}' if run.reason else ''}"


def _queue_growing(watched: WatchedCrawl, rules: AlertRules) -> str:
    """Fires if the mean number of waiting tasks rose in every fifth of the time."""
    seconds = rules.queue_growing or 0.0
    points = [point for point in watched.points if point.at >= watched.now - seconds]
    if not watched.is_running or not _is_whole(watched, seconds):
        return ""
    parts: list[list[int]] = [[] for _ in range(PARTS)]
    for point in points:
        part = int((point.at - (watched.now - seconds)) / seconds * PARTS)
        parts[min(part, PARTS - 1)].append(point.queued + point.delayed)
    means = [sum(part) / len(part) for part in parts if part]
    if len(means) < PARTS or any(later <= earlier for earlier, later in pairwise(means)):
        return ""
    first, last = (point.queued + point.delayed for point in (points[0], points[-1]))
    return f"its queue has been growing for {_time(seconds)}: from {first:,} to {last:,} tasks"


def _error_share(watched: WatchedCrawl, rules: AlertRules) -> str:
    points = [point for point in watched.points if point.at >= watched.now - rules.error_window]
    if not points or not watched.is_running:
        return ""
    first, now = points[0], watched.progress
    errors = now.dead - first.dead + now.retried - first.retried
    attempts = now.done - first.done + errors
    if attempts < LEAST_ATTEMPTS or errors / attempts <= (rules.error_share or 0.0):
        return ""
    failed = f"{errors:,} of {several(attempts, 'attempt')}"
    return f"{failed} failed in the last {_time(watched.now - first.at)} ({_percent(errors / attempts)})"


def _no_progress(watched: WatchedCrawl, rules: AlertRules) -> str:
    seconds = rules.no_progress or 0.0
    if not watched.is_running or watched.progress.is_finished or not _is_attended(watched):
        return ""
    before = [point for point in watched.points if point.at <= watched.now - seconds]
    if not before or before[-1].done + before[-1].dead != watched.progress.done + watched.progress.dead:
        return ""
    at_work = sum(member.presence is Presence.WORKING for member in watched.crew)
    left = several(watched.progress.left, "task")
    return f"no page has ended for {_time(seconds)}; {left} left, {several(at_work, 'worker')} at work"


def _worker_lost(watched: WatchedCrawl, rules: AlertRules) -> str:
    seconds = rules.worker_lost or 0.0
    lost = [
        member.beat.worker
        for member in watched.crew
        if member.presence is Presence.GONE and watched.now - member.beat.seen <= seconds
    ]
    if not lost or not watched.is_running:
        return ""
    more = f" and {len(lost) - WORKERS_NAMED} more" if len(lost) > WORKERS_NAMED else ""
    return f"{several(len(lost), 'worker')} lost in the last {_time(seconds)}: {', '.join(lost[:WORKERS_NAMED])}{more}"


def _dead_letters(watched: WatchedCrawl, rules: AlertRules) -> str:
    dead, most = watched.progress.dead, rules.dead_letters or 0
    return f"{several(dead, 'dead letter')}, more than {most:,}; see `shoal dead list`" if dead > most else ""


def _budget_spent(watched: WatchedCrawl, rules: AlertRules) -> str:
    budget, cost = watched.crawl.budgets.cost, watched.progress.cost
    if not budget or cost < (rules.budget_spent or 0.0) * budget:
        return ""
    return f"{money(cost)} of its budget of {money(budget)} is spent"


def _deadline(watched: WatchedCrawl, rules: AlertRules) -> str:
    seconds, state = rules.deadline or 0.0, watched.progress.state
    has_ended = state in (CrawlState.FINISHED, CrawlState.CANCELLED, CrawlState.STOPPED)
    if has_ended or watched.now - watched.crawl.created <= seconds:
        return ""
    left = several(watched.progress.left, "task")
    return f"it is not finished {_time(seconds)} after it began: {left} left"


def _store_slow(watched: WatchedCrawl, rules: AlertRules) -> str:
    outages = [
        line
        for member in watched.crew
        if member.presence is Presence.WORKING
        for line in member.beat.troubles
        if line.startswith(STORE_OUTAGES)
    ]
    if outages:
        return outages[0]
    mean = watched.write_seconds
    if mean is None or mean <= (rules.store_slow or 0.0):
        return ""
    return f"a write to its store takes {mean:.2g} s"


RULES: Final[dict[str, Callable[[WatchedCrawl, AlertRules], str]]] = {
    "queue_growing": _queue_growing,
    "error_share": _error_share,
    "no_progress": _no_progress,
    "worker_lost": _worker_lost,
    "dead_letters": _dead_letters,
    "budget_spent": _budget_spent,
    "deadline": _deadline,
    "store_slow": _store_slow,
}


def _is_whole(watched: WatchedCrawl, seconds: float) -> bool:
    """Whether the history covers the last `seconds`."""
    points = watched.points
    # A twentieth may lack at each end: points come every ten seconds, and a short time has few of them.
    slack = max(seconds / 20, 15.0)
    return (
        bool(points)
        and points[0].at <= watched.now - seconds + slack
        and points[-1].at >= watched.now - slack - seconds / 5
    )


def _is_attended(watched: WatchedCrawl) -> bool:
    """Whether a worker is at work or was lost within a day: if all workers left in good order, people stopped the
    crawl."""
    return any(
        member.presence is Presence.WORKING
        or (member.presence is Presence.GONE and watched.now - member.beat.seen <= A_DAY)
        for member in watched.crew
    )


def _time(seconds: float) -> str:
    for unit, size in (("day", A_DAY), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= 2 * size or seconds == size:
            return several(round(seconds / size), unit)
    return several(round(seconds), "second")


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
