"""Utilisation of hosts' pace, exits, cores, slots, store and network line by a crawl, and the number of workers that it
needs. Pure.

Utilisation is demand over capacity; the highest one is the bottleneck."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from shoal.crawl.record import has_store_server, record_of
from shoal.exits.pools import region_in
from shoal.insight.stats import may_start_in, pool_of, with_others
from shoal.insight.survey import LANES_READ, Measured, Survey
from shoal.model import STAGE, VIA, Crawl
from shoal.policy.limits import pages_per_write
from shoal.settings.table import Settings
from shoal.worker.workers import Member

# A resource counts as saturated from the first share on; workers are planned to be loaded up to the second.
SATURATED: Final = 0.8
TARGET_SHARE: Final = 0.85
# The share of a machine's cores that workers may use.
USABLE_CORES: Final = 0.95
MOST_TIMES: Final = 64.0
# The number at work is kept while the need differs from it by less than the noise of a measurement.
NOISE: Final = 1.1
# A host whose next start is later than its pace explains by this time is resting.
REST_SECONDS: Final = 10.0
# With fewer expected pages than this the measured time is too short.
FEW_PAGES: Final = 3
# A full network differs from slow sites by the share of a request's time that its body takes.
BODY_SHARE: Final = 0.6

Thing = Literal["pace", "exits", "cpu", "slots", "store", "line"]
THINGS: Final[tuple[Thing, ...]] = ("exits", "pace", "store", "cpu", "slots", "line")
# More workers add capacity of these, and of a store with several writers.
OF_WORKERS: Final[tuple[Thing, ...]] = ("cpu", "slots")


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """The utilisation of each resource: 1.0 is all of it.

    `pace`: the pace of hosts with work; `exits`: the pools' rates; `cpu`: a core per worker; `slots`: requests that
    workers may have in flight; `store`: the workers' writers; `line`: the network."""

    pace: float = 0.0
    exits: float = 0.0
    cpu: float = 0.0
    slots: float = 0.0
    store: float = 0.0
    line: float = 0.0

    @property
    def tightest(self) -> Thing:
        """The resource with the highest share. A full line, or a busy CPU, also fills the slots: then it is the
        cause."""
        if self.line >= SATURATED and self.slots >= SATURATED:
            return "line"
        found: Thing = max(THINGS, key=lambda name: float(getattr(self, name)))
        return "cpu" if found == "slots" and self.cpu >= SATURATED else found


def shares_of(survey: Survey, done: Measured) -> Shares:
    """The utilisation of each resource."""
    figures, workers = done.figures, max(1, done.workers)
    time = done.worker_seconds
    pace, exits = _allowed(survey, done.fetch_seconds)
    batch = 2 * pages_per_write(settings_of(survey.crawl))
    write = (figures.write_seconds + figures.settle_seconds) / figures.writes if figures.writes else 0.0
    slots = min(1.0, figures.waiting_for_slots / time) if time else 0.0
    body = figures.body_seconds / figures.fetch_seconds if figures.fetch_seconds else 0.0
    return Shares(
        pace=min(1.0, done.starts / pace) if pace else 0.0,
        exits=min(1.0, done.starts / exits) if exits else 0.0,
        cpu=min(1.0, done.load),
        slots=slots,
        store=min(1.0, done.rate * write / (workers * batch)),
        line=_line_share(slots, body),
    )


def _line_share(slots: float, body: float) -> float:
    """The utilisation of the network: if bodies take most of a request's time and all slots are used, some body arrives
    at every moment."""
    if body < BODY_SHARE:
        return 0.0
    return 1.0 if slots >= SATURATED else slots


def _allowed(survey: Survey, fetch_seconds: float) -> tuple[float, float]:
    """Starts per second that the paces of hosts with work allow, and that the exits of their pools allow; 0: unlimited,
    or not known since not all lanes were read."""
    pace = exits = 0.0
    # The lane of a later stage has no host and no pace: its pages are fetched already.
    busy = [with_others(lane) for lane in survey.lanes if (lane.waiting or lane.in_flight) and STAGE not in lane.lane]
    for lane in busy:
        if may_start_in(lane) > 2 * lane.interval + REST_SECONDS:
            continue
        pace += _per_second(lane.interval, lane.cap, fetch_seconds)
        pool = pool_of(lane, survey.crawl)
        if pool is not None:
            usable = len({*pool.exits} - survey.resting(lane.lane))
            exits += usable * _per_second(pool.interval, pool.cap, fetch_seconds) if usable else 0.0
    is_whole = len(survey.lanes) < LANES_READ and math.isfinite(pace)
    # The number of exits that workers offer for a region is not known here.
    has_only_pools = bool(busy) and all(VIA in lane.lane and not region_in(lane.lane) for lane in busy)
    return (pace if is_whole else 0.0), (exits if has_only_pools and math.isfinite(exits) else 0.0)


def _per_second(interval: float, cap: int, fetch_seconds: float) -> float:
    paced = 1 / interval if interval > 0 else math.inf
    capped = cap / fetch_seconds if cap > 0 and fetch_seconds > 0 else math.inf
    return min(paced, capped)


def is_scarce(survey: Survey) -> bool:
    """Whether hardly any page waits: links are found no faster than pages are fetched."""
    return hardly_waits(survey.progress.queued, survey.at_work)


def hardly_waits(waiting: int, members: Iterable[Member]) -> bool:
    """Whether so few tasks wait that these workers are more than enough."""
    return waiting < max(1, sum(member.beat.slots for member in members) // 4)


def growing(crawl: Crawl) -> tuple[Thing, ...]:
    """The resources that grow with the number of workers. A file has one writer, a database server several."""
    return (*OF_WORKERS, "store") if has_store_server(crawl) else OF_WORKERS


def gain(shares: Shares, done: Measured, *, times: float, grows: Sequence[Thing], own_machines: bool) -> float:
    """The speed-up with `times` as many workers: on new machines, or on the present ones."""
    limits = [times]
    for name in THINGS:
        share = float(getattr(shares, name))
        if share > 0:
            limits.append((times if name in grows else 1.0) / share)
    if not own_machines and done.cores and sum(done.loads) > 0:
        limits.append(max(1.0, _cores_allow(done, times=times)))
    return max(min(limits), min(1.0, times))


def _cores_allow(done: Measured, *, times: float) -> float:
    """The speed-up that the present cores allow `times` as many workers."""
    if not done.is_crowded:
        return USABLE_CORES * done.cores / sum(done.loads)
    # Other programs use the cores too: more worker processes get a larger share.
    return times * done.cores / (done.cores + (times - 1) * done.workers * done.core_got)


class Need(NamedTuple):
    """How many workers are needed, not rounded: for CPU, and for everything else."""

    cores: float
    rest: float

    @property
    def all_of_it(self) -> float:
        return max(self.cores, self.rest)


def needed(shares: Shares, done: Measured, *, grows: Sequence[Thing]) -> Need:
    """The workers needed to reach the limit of hosts, exits, line or store.

    A saturated store gets no more workers, even if it takes several writers: a full one gets slower with each. It
    keeps the workers that it has."""
    fixed = [float(getattr(shares, name)) for name in THINGS if name not in OF_WORKERS]
    most = min((1 / share for share in fixed if share > 1 / MOST_TIMES), default=2.0)
    workers = done.workers * most / TARGET_SHARE
    writers = min(done.workers, workers * shares.store) if "store" in grows else 0.0
    return Need(workers * shares.cpu, max(workers * max(shares.slots, done.slots_used), writers))


def in_hand(shares: Shares, done: Measured, members: Iterable[Member]) -> Need:
    """The workers needed to go on at the present speed."""
    found = list(members)
    busy = sum(one.beat.busy for one in found) / max(1, sum(one.beat.slots for one in found))
    workers = done.workers / TARGET_SHARE
    return Need(workers * shares.cpu, workers * max(shares.slots, shares.store, done.slots_used, min(1.0, busy)))


def whole_workers(need: float, *, at_work: int) -> int:
    """The need rounded to whole workers, at least one."""
    if need <= at_work * NOISE:
        return max(1, min(at_work, math.ceil(need * NOISE - 0.05)))
    return max(1, math.ceil(need - 0.05))


def is_too_short(survey: Survey, done: Measured) -> bool:
    """Whether the hosts' pace allows so few pages in the measured time that zero pages mean nothing."""
    pace, _ = _allowed(survey, done.fetch_seconds)
    return 0 < pace * done.seconds < FEW_PAGES


def settings_of(crawl: Crawl) -> Settings:
    """The settings of the crawl."""
    return record_of(crawl).settings if crawl.settings else Settings()
