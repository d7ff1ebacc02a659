"""The parts of a serving process, from the places that were named."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

from shoal.crawl.inbox import Inbox
from shoal.crawl.opening import Places, inbox_beside
from shoal.crawl.places import file_of
from shoal.duties.alerts.config import AlertConfig
from shoal.duties.schedules.config import Schedule
from shoal.errors import StorageError, UsageError
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.serve.access import Access
from shoal.serve.parts import Parts
from shoal.serve.reach import Reached
from shoal.serve.starting import Spiders
from shoal.text.secrets import masked


def parts_at(
    places: Places,
    *,
    access: Access,
    spiders: Path | None = None,
    alerts: AlertConfig | None = None,
    schedules: Mapping[str, Schedule] | None = None,
) -> Parts:
    """The parts for these places. Nothing is opened yet."""
    frontier = Reached(f"the frontier {masked(places.frontier)}", _opening(places.frontier))
    folder = Spiders(spiders, places)
    _check_spiders(schedules or {}, folder)
    return Parts(
        places=places,
        frontier=frontier,
        inbox=Reached(f"the inboxes of {masked(places.frontier)}", partial(_inbox, places)),
        access=access,
        spiders=folder,
        alerts=alerts,
        schedules=schedules,
    )


async def _inbox(places: Places) -> Inbox:
    return inbox_beside(places)


def _check_spiders(schedules: Mapping[str, Schedule], folder: Spiders) -> None:
    """Refuse schedules of spiders that may not be started here: they would fail when nobody looks."""
    for schedule in schedules.values():
        try:
            folder.reference(schedule.spider)
        except UsageError as error:
            raise UsageError(f"[[schedules]] {schedule.name!r}: {error}") from None


def _opening(url: str) -> Callable[[], Awaitable[Frontier]]:
    """What opens the frontier. A file is made at first; one that was there and is gone is not replaced by a new one."""
    path, was_open = file_of(url), False

    async def opening() -> Frontier:
        nonlocal was_open
        if was_open and path is not None and not os.path.exists(path):  # noqa: ASYNC240 -- a look at a local file
            raise StorageError(f"{path} is gone: put it back, or restart `shoal serve` for a new one")
        frontier = await open_frontier(url)
        was_open = True
        return frontier

    return opening
