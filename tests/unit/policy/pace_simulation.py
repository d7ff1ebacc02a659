"""A lane, a host and a fleet in simulated time: the frontier's rules and the workers' policy, nothing else."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.frontier.rules.lanes import Pace, starts_within, take_slot, update_pace
from shoal.frontier.rules.tasks import next_token
from shoal.model import LaneUpdate, Lease, Task
from shoal.policy.politeness import Moods
from shoal.policy.retries import Verdict

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
class Fleet:
    """Workers that crawl one host; `starts` and `good` are the times of requests and of good answers."""

    host: Host
    rate: float = 20.0
    workers: int = 1
    adaptive: bool = True
    starts: list[float] = field(default_factory=list)
    good: list[float] = field(default_factory=list)
    intervals: list[tuple[float, float]] = field(default_factory=list)

    def run(self, seconds: float) -> Fleet:
        base = 1.0 / self.rate
        self._pace = Pace(BEGIN, 0.0, 0.0, base, base, CAP)
        self._in_flight = self._token = 0
        moods = [Moods(adaptive=self.adaptive) for _ in range(self.workers)]
        order = itertools.count()
        events: list[tuple[float, int, str, int, Lease | None, LaneUpdate | None]] = [
            (BEGIN + number * ASKS_EVERY / self.workers, next(order), "ask", number, None, None)
            for number in range(self.workers)
        ]
        while events and events[0][0] < BEGIN + seconds:
            now, _, kind, number, lease, update = heapq.heappop(events)
            if kind == "ask":
                for lent in self._lend(now):
                    heapq.heappush(events, (now + lent.wait, next(order), "start", number, lent, None))
                heapq.heappush(events, (now + ASKS_EVERY, next(order), "ask", number, None, None))
            elif kind == "start":
                assert lease is not None
                self.starts.append(now - BEGIN)
                verdict, rest = self.host(now)
                if not verdict.slows:
                    self.good.append(now - BEGIN)
                change = moods[number].after(lease, verdict, LATENCY)
                if verdict.slows:
                    asked = None if rest is None else LaneUpdate(rest_seconds=rest)
                    change = moods[number].resting(lease, change, asked)
                settled = now + LATENCY + FLUSH_SECONDS
                heapq.heappush(events, (settled, next(order), "settle", number, lease, change))
            else:
                self._in_flight -= 1
                if update is not None:
                    self._pace = update_pace(self._pace, update, now=now)
                    self.intervals.append((now - BEGIN, self._pace.interval))
        return self

    def _lend(self, now: float) -> list[Lease]:
        pace = self._pace
        if pace.next_start > now + HORIZON or self._in_flight >= CAP:
            return []
        count = starts_within(
            CAP - self._in_flight, interval=pace.interval, next_start=pace.next_start, horizon=HORIZON, now=now
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
