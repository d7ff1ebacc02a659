"""A lane, a host and a fleet in simulated time: the frontier's rules and the workers' policy, nothing else."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from shoal.frontier.rules.lanes import Pace, starts_within, take_slot, update_pace
from shoal.frontier.rules.tasks import next_token
from shoal.model import LaneUpdate, Lease, Task
from shoal.policy.pace import Pacer
from shoal.policy.politeness import lent_interval
from shoal.policy.retries import Verdict
from shoal.settings.table import Settings

LATENCY = 0.03
FLUSH_SECONDS = 0.05
ASKS_EVERY = 0.1
HORIZON = 1.0
CAP = 8
BEGIN = 1_000_000.0
GOOD = Verdict("ok", "handle")
UNAVAILABLE = Verdict("http_503", "retry", free=True, slows=True)
TOO_MANY = Verdict("http_429", "retry", free=True, slows=True, too_often=True)

# What a host answers to a request at this time: a verdict, and the Retry-After that comes with it.
Host = Callable[[float], tuple[Verdict, float | None]]
# The seconds that a host takes to answer a request at this time.
Latency = Callable[[float], float]


def refuses_one_in_ten(seed: int, *, rest: float | None = 1.0) -> Host:
    rng = random.Random(seed)
    return lambda at: (UNAVAILABLE, rest) if rng.random() < 0.1 else (GOOD, None)


def refuses_every_tenth(*, rest: float | None = 1.0) -> Host:
    count = itertools.count(1)
    return lambda at: (UNAVAILABLE, rest) if next(count) % 10 == 0 else (GOOD, None)


def is_down(since: float, until: float, *, rest: float | None = None) -> Host:
    return lambda at: (UNAVAILABLE, rest) if since <= at - BEGIN < until else (GOOD, None)


@dataclass
class Bucket:
    """Bears so many requests per second, and refuses what is above that."""

    rate: float
    verdict: Verdict
    rest: float | None = 1.0
    room: float = 5.0
    tokens: float = 5.0
    at: float = BEGIN

    def __call__(self, at: float) -> tuple[Verdict, float | None]:
        self.tokens = min(self.room, self.tokens + (at - self.at) * self.rate)
        self.at = at
        if self.tokens < 1:
            return self.verdict, self.rest
        self.tokens -= 1
        return GOOD, None


@dataclass
class Knee:
    """Answers so many requests per second, one after the other: what comes faster waits. Above `most` per second it
    refuses. Pages differ: their own time varies by `noise`, and a share of `heavy` ones takes eight times as long."""

    bears: float
    most: float = 1e9
    seconds: float = 0.05
    noise: float = 0.3
    heavy: float = 0.0
    seed: int = 1
    changes: Callable[[Knee, float], None] = lambda knee, at: None

    def __post_init__(self) -> None:
        self._rng, self._free = random.Random(self.seed), BEGIN
        self._refusals = Bucket(self.most, TOO_MANY, rest=None, room=3.0, tokens=3.0)

    def __call__(self, at: float) -> tuple[Verdict, float | None]:
        return self._refusals(at)

    def waits(self, at: float) -> float:
        """For how long a request of this time waits for those before it."""
        return max(self._free - at, 0.0)

    def latency(self, at: float) -> float:
        self.changes(self, at - BEGIN)
        wait = self.waits(at)
        self._free = max(self._free, at) + 1 / self.bears
        own = self.seconds * math.exp(self._rng.gauss(0, self.noise))
        return wait + (8 * own if self._rng.random() < self.heavy else own)


@dataclass
class Fleet:
    """Workers that crawl one host; `starts` and `good` are the times of requests and of good answers."""

    host: Host
    rate: float = 20.0
    workers: int = 1
    adaptive: bool = True
    settings: Settings | None = None
    latency: Latency = lambda at: LATENCY
    first: float = 0.0
    cap: int = CAP
    crawl_delay: float | None = 0.0
    starts: list[float] = field(default_factory=list)
    good: list[float] = field(default_factory=list)
    intervals: list[tuple[float, float]] = field(default_factory=list)
    learnt: float = 0.0

    def run(self, seconds: float) -> Fleet:
        base = 1.0 / self.rate if self.settings is None else lent_interval(1.0 / self.rate)
        self._pace = Pace(BEGIN, 0.0, 0.0, self.first or base, base, self.cap)
        self._in_flight = self._token = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now = BEGIN
        for number in range(self.workers):
            self._at(BEGIN + number * ASKS_EVERY / self.workers, partial(self._ask, self._pacer()))
        while self._events and self._events[0][0] < BEGIN + seconds:
            self._now, _, step = heapq.heappop(self._events)
            step()
        return self

    def _at(self, time: float, step: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), step))

    def _ask(self, pacer: Pacer) -> None:
        for lease in self._lend(self._now):
            self._at(self._now + lease.wait, partial(self._start, pacer, lease))
        self._at(self._now + ASKS_EVERY, partial(self._ask, pacer))

    def _start(self, pacer: Pacer, lease: Lease) -> None:
        self.starts.append(self._now - BEGIN)
        verdict, rest = self.host(self._now)
        if not verdict.slows:
            self.good.append(self._now - BEGIN)
        seconds = self.latency(self._now)
        self._at(self._now + seconds, partial(self._answered, pacer, lease, verdict, rest, seconds))

    def _answered(self, pacer: Pacer, lease: Lease, verdict: Verdict, rest: float | None, seconds: float) -> None:
        change = pacer.after(lease, verdict, seconds, crawl_delay=self.crawl_delay)
        if verdict.slows:
            change = pacer.resting(lease, change, None if rest is None else LaneUpdate(rest_seconds=rest))
        self._at(self._now + FLUSH_SECONDS, partial(self._settle, change))

    def _settle(self, update: LaneUpdate | None) -> None:
        self._in_flight -= 1
        if update is not None:
            self._pace = update_pace(self._pace, update, now=self._now)
            self.intervals.append((self._now - BEGIN, self._pace.interval))
            self.learnt = update.learnt or self.learnt

    def _pacer(self) -> Pacer:
        return Pacer(adaptive=self.adaptive) if self.settings is None else Pacer.of(self.settings)

    def _lend(self, now: float) -> list[Lease]:
        pace = self._pace
        if pace.next_start > now + HORIZON or self._in_flight >= self.cap:
            return []
        count = starts_within(
            self.cap - self._in_flight, interval=pace.interval, next_start=pace.next_start, horizon=HORIZON, now=now
        )
        return [self._take(now) for _ in range(count)]

    def _take(self, now: float) -> Lease:
        pace = self._pace
        start = max(now, pace.next_start)
        self._token = next_token(self._token, now=now)
        self._in_flight += 1
        last, following = take_slot(
            start, next_start=pace.next_start, interval=pace.interval, blocked_until=pace.blocked_until, now=now
        )
        self._pace = pace._replace(last_start=last, next_start=following)
        return Lease(
            crawl="c",
            task=Task(url="http://a.test/", key=1, lane="a.test"),
            token=self._token,
            wait=start - now,
            interval=pace.interval,
            base_interval=pace.base_interval,
        )


def per_second(times: list[float], since: float, until: float) -> float:
    """How many of these times lie in a span, per second of it."""
    return sum(since <= time < until for time in times) / (until - since)
