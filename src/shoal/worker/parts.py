"""What a worker is built from."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from shoal.archive.base import Archive
from shoal.exits.troubles import Troubles
from shoal.frontier.base import Frontier
from shoal.journey.intake import RecentKeys
from shoal.journey.notes import FailingHandlers
from shoal.journey.results import Finished
from shoal.model import HTTP, Lease, Pool, Result, SettleReport
from shoal.spider.spider import Spider
from shoal.store.base import Store
from shoal.worker.black_box import BlackBox, WorkerBox
from shoal.worker.renewals import OpenFrontier
from shoal.worker.retirement import Retirement
from shoal.worker.shared_slots import CommonSlots, Solitude
from shoal.worker.tally import Tally


class Shared(NamedTuple):
    """What the workers of one process share: the black box that its parent sees, the solitude of pages that were lent
    alone, a second connection to the frontier, the digest of the spider's code, the slots that they have in common, and
    when the process retires."""

    box: BlackBox
    solitude: Solitude
    beside: OpenFrontier | None = None
    code: str = ""
    slots: CommonSlots | None = None
    retirement: Retirement | None = None


class PageJourney(Protocol):
    """What a worker asks of the journey of its pages. `failing` says whether the crawl must pause, `stop` why a
    handler wants it to be stopped."""

    failing: FailingHandlers
    stop: str

    async def prepare(self, lease: Lease) -> None:
        """Do what takes time before the start slot of the lease comes."""

    def take(self, lease: Lease, landed: Callable[[Lease], Awaitable[None] | None]) -> Awaitable[Finished]:
        """Work on the lease. `landed` is called as soon as the page is there."""


@dataclass(frozen=True, kw_only=True)
class WorkerParts:
    """What a worker is built from. `say` takes one line for people.

    `box` is where the worker leaves traces for the one who finds it dead; `beside` opens a second connection to the
    frontier, for renewals while a handler blocks the event loop. `solitude`, `slots` and `retirement` are shared by the
    workers of one process.

    `settled`, if it is there, is told of the results that the frontier has confirmed, and what it said of them. `kinds`
    are those of the tasks that the worker does, `offers` the exits that only this machine has, `code` is the digest of
    its spider's code.

    `tally` counts what the worker does. `clock` gives the time of day, for signs of life; `monotonic` the time by which
    start slots are kept."""

    spider: Spider
    frontier: Frontier
    store: Store
    journey: PageJourney
    known: RecentKeys
    say: Callable[[str], None]
    archive: Archive | None = None
    troubles: Troubles | None = None
    box: WorkerBox | None = None
    beside: OpenFrontier | None = None
    solitude: Solitude | None = None
    slots: CommonSlots | None = None
    retirement: Retirement | None = None
    kinds: tuple[str, ...] = (HTTP,)
    offers: tuple[Pool, ...] = ()
    code: str = ""
    settled: Callable[[list[Result], SettleReport], None] | None = None
    tally: Tally = field(default_factory=Tally)
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
