"""The limits that stop a crawl: `max_items`, `max_bytes`, `max_seconds`, `deadline`; and how to raise them."""

from __future__ import annotations

import math
from typing import Any, Final

from shoal.errors import UsageError
from shoal.frontier.rules.tasks import reached
from shoal.model import Crawl, CrawlState, Limit, Progress
from shoal.policy.failures import BYTES, ITEMS
from shoal.settings.table import Settings
from shoal.settings.values import deadline_at

SPIDER: Final = "spider: "  # begins the reason of a crawl that its spider stopped
DEADLINE: Final = "deadline"
WRITES_PER_LIMIT: Final = 10
GOES_ON: Final = (CrawlState.RUNNING, CrawlState.PAUSED)  # a spider may stop these, also if people paused it meanwhile
COUNTED: Final = ("max_items", "max_bytes", "max_seconds")


def limits_of(settings: Settings, *, now: float, former: Crawl | None = None) -> tuple[Limit, ...]:
    """The limits of a crawl with these settings. A deadline without a day is the next one at its time; a crawl that
    goes on after a crash keeps its deadline. Refuses a deadline that has passed before the crawl begins."""
    found = []
    for name, note, most in (("max_items", ITEMS, settings.max_items), ("max_bytes", BYTES, settings.max_bytes)):
        if most:
            found.append(Limit(of="note", note=note, most=float(most), why=f"{name} {most} reached"))
    if settings.max_seconds:
        why = f"max_seconds {settings.max_seconds:g} reached"
        found.append(Limit(of="ran", most=settings.max_seconds, why=why))
    if settings.deadline:
        why = f"{DEADLINE} {settings.deadline} passed"
        goes_on = former is not None and former.state in GOES_ON
        known = deadline_of(former) if former is not None and goes_on else None
        at = known.most if known is not None and known.why == why else deadline_at(settings.deadline, now=now)
        if former is None and at <= now:
            raise UsageError(
                f"deadline {settings.deadline} has passed, no crawl can begin with it: give a later one, or a time of"
                " day such as 06:00 for the next one"
            )
        found.append(Limit(of="wall", most=at, why=why))
    return tuple(found)


def deadline_of(crawl: Crawl) -> Limit | None:
    """The deadline of a crawl, if it has one."""
    return next((limit for limit in crawl.limits if limit.of == "wall"), None)


def reached_by(crawl: Crawl, progress: Progress, *, now: float) -> Limit | None:
    """The limit that would stop a crawl at once; None: no limit, or nothing is left to do."""
    if not progress.left:
        return None
    return reached(crawl.limits, note=lambda name: progress.notes.get(name, 0), ran=progress.ran, wall=now)


def raised(crawl: Crawl, progress: Progress) -> dict[str, Any]:
    """The settings that let a stopped crawl go on, each with a value above what it has counted. None for a deadline: a
    crawl that is run again gets the next one."""
    found = {}
    for limit in crawl.limits:
        name, _, _ = limit.why.partition(" ")
        counted = counted_for(limit, progress)
        if name in COUNTED and counted >= limit.most:
            most = 2 * max(limit.most, math.ceil(counted))
            found[name] = float(most) if name == "max_seconds" else int(most)
    return found


def counted_for(limit: Limit, progress: Progress) -> float:
    """What a crawl has counted towards a limit that is not a time of day."""
    return progress.ran if limit.of == "ran" else progress.notes.get(limit.note, 0)


def pages_per_write(settings: Settings) -> int:
    """How many pages a worker writes at once: few if `max_items` is small, since a crawl exceeds it by the pages that
    wait for their write."""
    most = settings.flush_pages
    return max(1, min(most, settings.max_items // WRITES_PER_LIMIT)) if settings.max_items else most
