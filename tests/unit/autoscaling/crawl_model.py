"""A crawl in steps of a second: hosts with a pace, pages that cost time and CPU, a store; as much as advice looks at.

Rates are reckoned, not every request: what bounds a crawl says how many pages begin in a second, and whole pages
begin, take their time, and end."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from shoal.crawl.places import RememberedPlace, ResultPlaces
from shoal.crawl.record import CrawlRecord
from shoal.model import HTTP, VISITS, Crawl, CrawlState, LaneStatus, Progress
from shoal.settings.table import Settings

SLOTS: Final = 32
BATCH: Final = 256
LEASE_SECONDS: Final = 30.0


@dataclass(kw_only=True)
class Host:
    """A host with its pace, and how many of its pages wait, by kind."""

    name: str
    interval: float = 0.0
    cap: int = 8
    waiting: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0
    credit: float = 1.0
    rests_until: float = 0.0

    def grow(self, now: float, *, latency: float) -> None:
        """A second later, so many more pages may begin."""
        paced = 1 / self.interval if self.interval else math.inf
        rate = min(paced, self.cap / latency)
        self.credit = 0.0 if now < self.rests_until else min(self.credit + rate, max(1.0, rate))

    def starts_in(self, now: float) -> float:
        """Seconds until the next page may begin."""
        return max(self.rests_until - now, (1 - self.credit) * self.interval if self.credit < 1 else 0.0, 0.0)


@dataclass(kw_only=True)
class Writing:
    """A store: how long a batch takes, how many pages per second it takes in all, and whether it is a server."""

    batch_seconds: float = 0.05
    most: float = math.inf
    url: str = ""


@dataclass(kw_only=True)
class ModelCrawl:
    """One crawl. `latency` and `cpu` are seconds per page, by kind where there are several; `arrivals` gives the pages
    that appear in a second, by host, `links` how many new pages a page brings."""

    id: str
    hosts: list[Host]
    spider: str = "books"
    latency: float = 0.5
    cpu: dict[str, float] = field(default_factory=lambda: {HTTP: 0.02})
    writing: Writing = field(default_factory=Writing)
    arrivals: Callable[[int], dict[str, int]] = lambda _: {}
    feeding_until: float = 0.0
    retry_every: int = 0
    revisit: float = 0.0
    state: CrawlState = CrawlState.RUNNING
    done: int = 0
    visits: int = 0
    pushed: int = 0
    began: float = 0.0
    noise: float = 1.0
    finished: float | None = None
    _ends: list[tuple[float, int, int, str, int]] = field(default_factory=list)
    _later: list[tuple[float, int, int, str, int]] = field(default_factory=list)
    _lost: list[tuple[float, int, int, str, int]] = field(default_factory=list)
    _number: int = 0
    _ended: int = 0

    @property
    def queued(self) -> int:
        return sum(sum(host.waiting.values()) for host in self.hosts)

    @property
    def leased(self) -> int:
        return sum(entry[4] for entry in self._ends) + sum(entry[4] for entry in self._lost)

    @property
    def delayed(self) -> int:
        return sum(entry[4] for entry in self._later)

    @property
    def left(self) -> int:
        return self.queued + self.leased + self.delayed

    def in_hand(self, kind: str) -> int:
        """Pages of the kind that workers have in hand."""
        return sum(entry[4] for entry in self._ends if entry[3] == kind)

    def seconds_per_page(self) -> float:
        return self.latency * self.noise

    def cpu_per_page(self, kind: str) -> float:
        return self.cpu.get(kind, self.cpu[HTTP]) * self.noise

    def add(self, host: int, number: int, *, kind: str = HTTP) -> None:
        """So many pages more wait."""
        waiting = self.hosts[host].waiting
        waiting[kind] = waiting.get(kind, 0) + number
        if number and self.state is CrawlState.FINISHED:
            self.state = CrawlState.RUNNING

    def delay(self, now: float, host: int, number: int, *, kind: str = HTTP) -> None:
        """So many pages wait for a later time."""
        self._keep(self._later, now, host, kind, number)

    def pass_second(self, now: float) -> None:
        """Pages appear, end and fall due."""
        if self.state is CrawlState.RUNNING or now < self.feeding_until:
            for name, number in self.arrivals(int(now - self.began)).items():
                self.add(next(at for at, host in enumerate(self.hosts) if host.name == name), number)
        for _, host, kind, number in self._due(self._ends, now):
            self.hosts[host].in_flight -= number
            self._finish(now, host, kind, number)
        for _, host, kind, number in self._due(self._lost, now):
            self.add(host, number, kind=kind)

    def serve_leases(self, now: float) -> None:
        """What a worker's lease call does: delayed pages that are due wait, and a crawl without any has finished."""
        for _, host, kind, number in self._due(self._later, now):
            self.add(host, number, kind=kind)
        if self.pushed and self.state is not CrawlState.CANCELLED:
            self.add(0, self.pushed)
            self.pushed = 0
        if not self.left and now >= self.feeding_until and self.state is CrawlState.RUNNING:
            self.state, self.finished = CrawlState.FINISHED, now

    def begin(self, now: float, kind: str, most: int) -> int:
        """Pages of this kind begin, as many as the hosts allow, `most` at most; gives how many. No host goes first
        twice."""
        begun, size = 0, len(self.hosts)
        for place in range(size):
            at = (place + int(now)) % size
            host = self.hosts[at]
            number = min(host.waiting.get(kind, 0), int(host.credit), most - begun)
            if number <= 0:
                continue
            host.waiting[kind] -= number
            host.credit -= number
            host.in_flight += number
            begun += number
            self._keep(self._ends, now + self.seconds_per_page(), at, kind, number)
        return begun

    def lose(self, now: float, share: float) -> None:
        """Workers vanish with this share of the pages in hand: their leases run out."""
        kept = []
        for ends, number, host, kind, pages in self._ends:
            gone = round(pages * share)
            self.hosts[host].in_flight -= gone
            if gone:
                self._keep(self._lost, now + LEASE_SECONDS, host, kind, gone)
            if pages > gone:
                kept.append((ends, number, host, kind, pages - gone))
        heapq.heapify(kept)
        self._ends = kept

    def _finish(self, now: float, host: int, kind: str, pages: int) -> None:
        before, self._ended = self._ended, self._ended + pages
        retried = self._ended // self.retry_every - before // self.retry_every if self.retry_every else 0
        if retried:
            self.delay(now + 30.0, host, retried, kind=kind)
        if self.revisit:
            self.visits += pages - retried
            self.delay(now + self.revisit, host, pages - retried, kind=kind)
        else:
            self.done += pages - retried

    def _keep(self, heap: list[tuple[float, int, int, str, int]], at: float, host: int, kind: str, pages: int) -> None:
        self._number += 1
        heapq.heappush(heap, (at, self._number, host, kind, pages))

    @staticmethod
    def _due(heap: list[tuple[float, int, int, str, int]], now: float) -> list[tuple[float, int, str, int]]:
        found = []
        while heap and heap[0][0] <= now:
            at, _, host, kind, pages = heapq.heappop(heap)
            found.append((at, host, kind, pages))
        return found

    def record(self) -> Crawl:
        """The crawl as a frontier tells it."""
        settings = {}
        if self.writing.url:
            place = ResultPlaces(store=RememberedPlace(url=self.writing.url))
            settings = msgspec.to_builtins(CrawlRecord(settings=Settings(), results=place))
        return Crawl(id=self.id, spider=self.spider, state=self.state, settings=settings, finished=self.finished)

    def progress(self, now: float) -> Progress:
        """Its counters."""
        kinds: dict[str, int] = {}
        if len(self.cpu) > 1:
            kinds = {kind: sum(host.waiting.get(kind, 0) for host in self.hosts) for kind in self.cpu}
            for _, _, _, kind, number in self._later:
                kinds[kind] += number
        return Progress(
            state=self.state, feeding=now < self.feeding_until, queued=self.queued, delayed=self.delayed,
            leased=self.leased, done=self.done, kinds=kinds, notes={VISITS: self.visits} if self.visits else {},
            due_in=max(0.0, self._later[0][0] - now) if self._later else 0.0,
        )  # fmt: skip

    def lanes(self, now: float) -> list[LaneStatus]:
        """Its hosts with work."""
        return [
            LaneStatus(
                lane=host.name, waiting=sum(host.waiting.values()), in_flight=host.in_flight, interval=host.interval,
                cap=host.cap, starts_in=host.starts_in(now), base_interval=host.interval,
                rests_for=max(0.0, host.rests_until - now),
            )
            for host in self.hosts
            if host.in_flight or any(host.waiting.values())
        ]  # fmt: skip
