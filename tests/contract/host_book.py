"""What a host could write down about the crawls that share it, and what it must never see. It knows nothing of turns,
looks and lanes: only who asked, what was lent, and what was said about the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shoal.frontier.rules.constants import HEEDED_SECONDS
from shoal.model import DIRECT, Crawl, CrawlState, Lease, Pool

# A later round of a call begins after the first one, by the clock of the process.
BLUR_SECONDS = 0.2
ENDED = (CrawlState.FINISHED, CrawlState.CANCELLED, CrawlState.STOPPED)


@dataclass
class Lent:
    """A lease, and when it ends by itself."""

    lease: Lease
    worker: str
    end: float
    has_landed: bool = False


@dataclass
class Entry:
    """One crawl: its terms, its pace at each host, and when each host had its last lease."""

    crawl: Crawl
    state: CrawlState = CrawlState.RUNNING
    paces: dict[str, float] = field(default_factory=dict)
    caps: dict[str, int] = field(default_factory=dict)
    lent_at: dict[str, float] = field(default_factory=dict)

    def interval(self, host: str) -> float:
        return self.paces.get(host, self.crawl.interval)

    def cap(self, host: str) -> int:
        return self.caps.get(host, self.crawl.cap)


@dataclass
class HostBook:
    """All crawls and leases of a frontier, and the rests and rules of its hosts."""

    pools: dict[str, Pool]
    entries: dict[str, Entry] = field(default_factory=dict)
    lent: list[Lent] = field(default_factory=list)
    starts: dict[str, float] = field(default_factory=dict)
    exit_starts: dict[tuple[str, str], tuple[str, float]] = field(default_factory=dict)
    rests: dict[str, float] = field(default_factory=dict)
    rules: dict[str, float] = field(default_factory=dict)

    def note_lease(self, lease: Lease, worker: str, *, now: float, seconds: float) -> None:
        """A lease was lent: the host may see its request, and all that it knows of says so."""
        host, entry, start = lease.task.lane, self.entries[lease.crawl], now + lease.wait
        flying = list(self.in_flight(host, now))
        self.check_start(lease.crawl, host, start, now=now)
        strictest = min(one.cap(host) for one in (entry, *self.heeded(lease.crawl, host, now)))
        assert len(flying) < strictest, "the strictest cap"
        if entry.crawl.needs_rules:
            assert not [one for one in flying if one.lease.opens_lane], "rules are fetched by one crawl"
            assert lease.opens_lane == (self.rules.get(host, 0.0) <= now), "rules are fetched once"
        if lease.exit != DIRECT:
            self._check_exit(lease, start, now=now)
        self.lent.append(Lent(lease, worker, now + seconds))
        entry.lent_at[host] = now

    def check_start(self, crawl: str, host: str, start: float, *, now: float) -> None:
        """A request of the crawl may start then: it keeps the strictest pace, and the rests of all crawls."""
        strictest = max(one.interval(host) for one in (self.entries[crawl], *self.heeded(crawl, host, now)))
        assert start >= self.starts.get(host, 0.0) + strictest - BLUR_SECONDS, "the strictest pace"
        assert start >= self.rests.get(host, 0.0) - BLUR_SECONDS, "the rest that any crawl got"
        self.starts[host] = max(start, self.starts.get(host, 0.0))

    def _check_exit(self, lease: Lease, start: float, *, now: float) -> None:
        host, pool = lease.task.lane, self.pools[lease.task.pool]
        place = (host, lease.exit)
        assert start >= self.exit_starts.get(place, ("", 0.0))[1] + pool.interval - BLUR_SECONDS, "the pace of an exit"
        self.exit_starts[place] = lease.crawl, start
        using = [one for one in self.unsettled(now) if one.lease.exit == lease.exit]
        assert not (pool.exclusive and using), "an account is used by one lease"
        # What a crawl that has ended was answered through an exit counts no more.
        there = [one for one in using if one.lease.task.lane == host and not self._is_over(one)]
        assert len(there) < pool.cap, "the cap of an exit"

    def _is_over(self, lent: Lent) -> bool:
        return lent.has_landed and self.entries[lent.lease.crawl].state in ENDED

    def heeded(self, crawl: str, host: str, now: float) -> Iterator[Entry]:
        """The other crawls whose limits count at this host."""
        flying = {one.lease.crawl for one in self.in_flight(host, now)}
        for name, entry in self.entries.items():
            is_recent = entry.lent_at.get(host, 0.0) > now - HEEDED_SECONDS and entry.state not in ENDED
            if name != crawl and (name in flying or is_recent):
                yield entry

    def unsettled(self, now: float) -> Iterator[Lent]:
        return (one for one in self.lent if one.end > now)

    def in_flight(self, host: str, now: float) -> Iterator[Lent]:
        return (one for one in self.unsettled(now) if one.lease.task.lane == host and not one.has_landed)

    def forget(self, crawl: str) -> None:
        """The crawl is deleted. Its starts, rests and rules stay; its requests in flight and uses of exits do not."""
        del self.entries[crawl]
        self.lent = [one for one in self.lent if one.lease.crawl != crawl]
        self.exit_starts = {place: used for place, used in self.exit_starts.items() if used[0] != crawl}
