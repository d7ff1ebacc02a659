"""What a worker is built from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from shoal.archive.base import Archive
from shoal.exits.troubles import Troubles
from shoal.frontier.base import Frontier
from shoal.journey.journey import Journey
from shoal.journey.recent_keys import RecentKeys
from shoal.processes.black_box import BlackBox, WorkerBox
from shoal.processes.renewals import OpenFrontier
from shoal.processes.solitude import Solitude
from shoal.processes.tally import Tally
from shoal.spider import Spider
from shoal.store.base import Store


class Shared(NamedTuple):
    """What the workers of one process share: the black box that its parent sees, the solitude of pages that were lent
    alone, and a second connection to the frontier."""

    box: BlackBox
    solitude: Solitude
    beside: OpenFrontier | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerParts:
    """What a worker is built from. `say` takes one line for people.

    `box` is where the worker leaves traces for the one who finds it dead; `beside` opens a second connection to the
    frontier, for renewals while a handler blocks the event loop. `solitude` is shared by the workers of one process.

    `tally` counts what the worker does. `clock` gives the time of day, for signs of life; `monotonic` the time by which
    start slots are kept."""

    spider: Spider
    frontier: Frontier
    store: Store
    journey: Journey
    known: RecentKeys
    say: Callable[[str], None]
    archive: Archive | None = None
    troubles: Troubles | None = None
    box: WorkerBox | None = None
    beside: OpenFrontier | None = None
    solitude: Solitude | None = None
    tally: Tally = field(default_factory=Tally)
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
