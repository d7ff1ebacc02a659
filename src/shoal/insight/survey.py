"""Everything that is measured of a crawl, at one moment and between two moments: for metrics and advice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from shoal.frontier.base import Frontier
from shoal.model import FETCH_BUCKETS, Crawl, ExitStatus, Figures, Heartbeat, LaneStatus, Progress
from shoal.worker.workers import Member, Presence, workers_of

LANES_READ = 1_000
SHORTEST_SECONDS = 1.0
EXITS_READ = 1_000
# A worker that gets less than this share of the CPU time that it needs competes for its core.
CROWDED = 0.85


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """A crawl as it was read at the time `at` of a monotonic clock, with at most `LANES_READ` lanes, `EXITS_READ` exits
    and the latest workers. `pushed` URLs wait in its inbox. `parts`: by worker, the share of its process that works on
    this crawl, where processes work on several crawls."""

    crawl: Crawl
    progress: Progress
    lanes: Sequence[LaneStatus] = ()
    members: Sequence[Member] = ()
    exits: Sequence[ExitStatus] = ()
    at: float = 0.0
    pushed: int = 0
    parts: Mapping[str, float] = msgspec.field(default_factory=dict)

    @property
    def at_work(self) -> list[Member]:
        return [member for member in self.members if member.presence is Presence.WORKING]

    def resting(self, lane: str) -> set[str]:
        """The exits that may not be used for the lane now: quarantined there, or parked for every host."""
        return {use.exit for use in self.exits if use.parked_for > 0 or (use.lane == lane and use.rests_for > 0)}


async def surveyed(
    crawl: Crawl, *, frontier: Frontier, pushed: int = 0, clock: Callable[[], float] = time.monotonic
) -> Survey:
    """Read a survey of the crawl."""
    return Survey(
        crawl=crawl,
        progress=await frontier.progress(crawl.id),
        lanes=await frontier.lanes(crawl.id, limit=LANES_READ),
        members=await workers_of(crawl.id, frontier=frontier),
        exits=await frontier.exits(crawl.id, limit=EXITS_READ) if crawl.pools else (),
        at=clock(),
        pushed=pushed,
    )


def summed(figures: Iterable[Figures]) -> Figures:
    """The sums of the figures of several workers."""
    found = list(figures)
    statuses: Counter[str] = Counter()
    for one in found:
        statuses.update(one.statuses)
    numbers = {
        name: sum(getattr(one, name) for one in found)
        for name in Figures.__struct_fields__
        if name not in ("statuses", "fetch_times")
    }
    return Figures(**numbers, statuses=dict(statuses), fetch_times=added(one.fetch_times for one in found))


def added(groups: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Sums of counts by FETCH_BUCKETS. A worker that has counted nothing yet may have no buckets."""
    totals = [0] * (len(FETCH_BUCKETS) + 1)
    for group in groups:
        for index, count in enumerate(group[: len(totals)]):
            totals[index] += count
    return tuple(totals)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a crawl did between two surveys.

    `figures` come from heartbeats, which are up to a second older than the surveys: they cover `worker_seconds`, summed
    over the workers, with `starts` of requests per second."""

    seconds: float
    worker_seconds: float
    starts: float
    pages: int
    workers: int
    figures: Figures
    loads: tuple[float, ...]
    cores: float
    memory_bytes: int
    slots: int = 0

    @property
    def rate(self) -> float:
        return self.pages / self.seconds

    @property
    def fetch_seconds(self) -> float:
        """The mean time of a request."""
        return self.figures.fetch_seconds / self.figures.fetches if self.figures.fetches else 0.0

    @property
    def load(self) -> float:
        return sum(self.loads) / len(self.loads) if self.loads else 0.0

    @property
    def slots_used(self) -> float:
        """The mean share of the workers' slots that had a request in flight."""
        time = self.worker_seconds * self.slots / self.workers if self.workers else 0.0
        return min(1.0, self.figures.fetch_seconds / time) if time else 0.0

    @property
    def core_got(self) -> float:
        """The mean share of a core that a worker got; `load` is the share that it needed."""
        return self.figures.cpu_seconds / self.worker_seconds if self.worker_seconds else 0.0

    @property
    def is_crowded(self) -> bool:
        """Whether workers compete for cores with each other or with other programs."""
        return 0 < self.core_got < CROWDED * self.load


def measured(before: Survey, now: Survey) -> Measured:
    """What was done between two surveys by the workers that are at work in the second."""
    seconds = max(now.at - before.at, SHORTEST_SECONDS)
    earlier = {member.beat.worker: member.beat for member in before.members}
    beats = [member.beat for member in now.at_work]
    parts = [_part(earlier.get(beat.worker), beat, seconds=seconds) for beat in beats]
    ended = now.progress.ended - before.progress.ended
    return Measured(
        seconds=seconds,
        worker_seconds=sum(covered for _, covered in parts),
        starts=sum(figures.fetches / covered for figures, covered in parts if covered),
        pages=max(0, ended),
        workers=len(beats),
        figures=summed(figures for figures, _ in parts),
        loads=tuple(beat.load * now.parts.get(beat.worker, 1.0) for beat in beats),
        cores=cores_of(beats),
        memory_bytes=sum(beat.memory_bytes for beat in beats),
        slots=sum(beat.slots for beat in beats),
    )


def _part(before: Heartbeat | None, now: Heartbeat, *, seconds: float) -> tuple[Figures, float]:
    """What one worker did, and the seconds between its two heartbeats: 0 without a new one."""
    if before is None:
        # A new worker: all its work lies between the surveys, or since its start.
        age = now.seen - now.started
        return now.figures, age if SHORTEST_SECONDS <= age < seconds else seconds
    apart = now.seen - before.seen
    # The clock of the heartbeats may have been set.
    is_likely = 0 <= apart <= 2 * seconds + SHORTEST_SECONDS
    return difference(before.figures, now.figures), apart if is_likely else seconds


def difference(before: Figures, now: Figures) -> Figures:
    """What was added between two readings."""
    numbers = {
        name: max(0, getattr(now, name) - getattr(before, name))
        for name in Figures.__struct_fields__
        if name not in ("statuses", "fetch_times")
    }
    return Figures(**numbers)


def cores_of(beats: Sequence[Heartbeat]) -> float:
    """The cores of the workers' machines; a machine that does not report them counts one per worker."""
    machines: dict[str, float] = {}
    for beat in beats:
        untold = machines.get(beat.machine, 0.0) + 1.0
        machines[beat.machine] = float(beat.cores) if beat.cores else untold
    return sum(machines.values())
