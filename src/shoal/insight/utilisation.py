"""How much of what a crawl can use it uses: hosts' pace, exits, cores, slots, store, line. Pure.

Everything has a share: how much of what it can do is asked of it now. What has the highest share bounds the crawl."""

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

# From this share on a thing counts as saturated; a worker is loaded up to this share.
SATURATED: Final = 0.8
TARGET_SHARE: Final = 0.85
# Of the cores of a machine so much is there for workers.
USABLE_CORES: Final = 0.95
MOST_TIMES: Final = 64.0
# As many as are at work are kept while what is needed is hardly more than that, or hardly less than one fewer: the
# noise of a measurement moves nobody.
NOISE: Final = 1.1
# A host rests that may not start for longer than its pace explains.
REST_SECONDS: Final = 10.0
# In fewer pages than this a time is too short to tell how fast a crawl is.
FEW_PAGES: Final = 3
# A line is told from slow sites by how long the bodies of answers take, as a share of the whole time.
BODY_SHARE: Final = 0.6

Thing = Literal["pace", "exits", "cpu", "slots", "store", "line"]


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """How much of each thing is used: 1.0 is all of it.

    `pace` is that of the hosts with work, `exits` that of the pools, `cpu` a core per worker, `slots` the requests that
    workers may have on their way, `store` what the writers of the workers can take, `line` the network."""

    pace: float = 0.0
    exits: float = 0.0
    cpu: float = 0.0
    slots: float = 0.0
    store: float = 0.0
    line: float = 0.0

    @property
    def tightest(self) -> Thing:
        """The thing with the highest share. A line that is full fills the slots as well, and so does a worker that has
        no time to take in answers: those are the causes."""
        if self.line >= SATURATED and self.slots >= SATURATED:
            return "line"
        found: Thing = max(THINGS, key=lambda name: float(getattr(self, name)))
        return "cpu" if found == "slots" and self.cpu >= SATURATED else found


THINGS: Final[tuple[Thing, ...]] = ("exits", "pace", "store", "cpu", "slots", "line")
# More workers bring more of these, and of what a store takes that has room for several writers.
OF_WORKERS: Final[tuple[Thing, ...]] = ("cpu", "slots")


def shares_of(survey: Survey, done: Measured) -> Shares:
    """How much of each thing is used."""
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
    """Where bodies take most of a request's time and the slots are full, one of many bodies arrives at any moment: the
    line has no time in which it does nothing."""
    if body < BODY_SHARE:
        return 0.0
    return 1.0 if slots >= SATURATED else slots


def _allowed(survey: Survey, fetch_seconds: float) -> tuple[float, float]:
    """Starts per second that the hosts with work allow by their pace, and that the exits of their pools allow; 0: any
    number. More lanes than were read allow more than is known."""
    pace = exits = 0.0
    # Pages that wait for a later stage are fetched already: their lane has no pace, and is no host.
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
    # How many exits workers offer for a region is not known here.
    has_only_pools = bool(busy) and all(VIA in lane.lane and not region_in(lane.lane) for lane in busy)
    return (pace if is_whole else 0.0), (exits if has_only_pools and math.isfinite(exits) else 0.0)


def _per_second(interval: float, cap: int, fetch_seconds: float) -> float:
    paced = 1 / interval if interval > 0 else math.inf
    capped = cap / fetch_seconds if cap > 0 and fetch_seconds > 0 else math.inf
    return min(paced, capped)


def is_scarce(survey: Survey) -> bool:
    """Whether hardly a page waits: links come as fast as pages do."""
    return hardly_waits(survey.progress.queued, survey.at_work)


def hardly_waits(waiting: int, members: Iterable[Member]) -> bool:
    """Whether so few tasks wait that these workers, or fewer, are enough."""
    return waiting < max(1, sum(member.beat.slots for member in members) // 4)


def growing(crawl: Crawl) -> tuple[Thing, ...]:
    """What there is more of with more workers. A file has one writer at a time, a database server several."""
    return (*OF_WORKERS, "store") if has_store_server(crawl) else OF_WORKERS


def gain(shares: Shares, done: Measured, *, times: float, grows: Sequence[Thing], own_machines: bool) -> float:
    """How many times as fast the crawl would be with so many times the workers: on machines of their own, or on those
    that are there."""
    limits = [times]
    for name in THINGS:
        share = float(getattr(shares, name))
        if share > 0:
            limits.append((times if name in grows else 1.0) / share)
    if not own_machines and done.cores and sum(done.loads) > 0:
        limits.append(max(1.0, _cores_allow(done, times=times)))
    return max(min(limits), min(1.0, times))


def _cores_allow(done: Measured, *, times: float) -> float:
    """How many times as fast so many times the workers may be on the cores that are there."""
    if not done.is_crowded:
        return USABLE_CORES * done.cores / sum(done.loads)
    # Turns on the cores are shared with other programs: more processes get more of the turns.
    return times * done.cores / (done.cores + (times - 1) * done.workers * done.core_got)


class Need(NamedTuple):
    """How many workers it takes, before they are rounded to whole ones: for their cores, and for everything else."""

    cores: float
    rest: float

    @property
    def all_of_it(self) -> float:
        return max(self.cores, self.rest)


def needed(shares: Shares, done: Measured, *, grows: Sequence[Thing]) -> Need:
    """As many workers as it takes to reach what hosts, exits, line and store allow.

    A store that is used up gets no more of them, also one that has room for several writers: that more writers are
    faster is not known before it is tried, and one that is full gets slower with each. That one keeps those it has."""
    fixed = [float(getattr(shares, name)) for name in THINGS if name not in OF_WORKERS]
    most = min((1 / share for share in fixed if share > 1 / MOST_TIMES), default=2.0)
    workers = done.workers * most / TARGET_SHARE
    writers = min(done.workers, workers * shares.store) if "store" in grows else 0.0
    return Need(workers * shares.cpu, max(workers * max(shares.slots, done.slots_used), writers))


def in_hand(shares: Shares, done: Measured, members: Iterable[Member]) -> Need:
    """As many as it takes for what workers do now, and no faster."""
    found = list(members)
    busy = sum(one.beat.busy for one in found) / max(1, sum(one.beat.slots for one in found))
    workers = done.workers / TARGET_SHARE
    return Need(workers * shares.cpu, workers * max(shares.slots, shares.store, done.slots_used, min(1.0, busy)))


def whole_workers(need: float, *, at_work: int) -> int:
    """So many workers, one at least."""
    if need <= at_work * NOISE:
        return max(1, min(at_work, math.ceil(need * NOISE - 0.05)))
    return max(1, math.ceil(need - 0.05))


def is_too_short(survey: Survey, done: Measured) -> bool:
    """Whether the hosts' pace allows so few pages in this time that none of them says nothing."""
    pace, _ = _allowed(survey, done.fetch_seconds)
    return 0 < pace * done.seconds < FEW_PAGES


def settings_of(crawl: Crawl) -> Settings:
    """The settings that the crawl's workers work by."""
    return record_of(crawl).settings if crawl.settings else Settings()
