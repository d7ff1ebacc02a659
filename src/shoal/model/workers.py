"""Heartbeats of workers, duties that one process at a time holds, and points of a crawl's history."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from shoal.model.leases import HTTP

# Upper bounds in seconds of the histogram of fetch times; its last bucket has no bound.
FETCH_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's work for a crawl and its cost: totals since its start.

    - `fetches`: requests that ended, with an answer or a fault; `fetch_times`: their histogram by FETCH_BUCKETS, not
      cumulative; `body_seconds`: the part of their time in which bodies were received
    - `statuses`: fetches by class: "2xx", "3xx", "4xx", "5xx", "fault"
    - `lease_calls`, `settles`, `writes`: calls of `frontier.lease`, `frontier.settle` and `store.write`; their seconds
      are from call to answer
    - `cpu_seconds`: of the whole process; `parse_cpu`, `handler_cpu` and `store_cpu` are estimates of parts of it, the
      rest is fetching and shoal
    - `waiting_for_slots`: seconds in which all slots were taken
    - `page_requests`: requests made by rendered pages; `page_refused`: their connections that the guard refused"""

    fetches: int = 0
    fetch_seconds: float = 0.0
    fetch_times: tuple[int, ...] = ()
    body_seconds: float = 0.0
    received_bytes: int = 0
    statuses: dict[str, int] = msgspec.field(default_factory=dict)
    lease_calls: int = 0
    lease_seconds: float = 0.0
    settles: int = 0
    settle_seconds: float = 0.0
    writes: int = 0
    write_seconds: float = 0.0
    cpu_seconds: float = 0.0
    parse_cpu: float = 0.0
    handler_cpu: float = 0.0
    store_cpu: float = 0.0
    waiting_for_slots: float = 0.0
    page_requests: int = 0
    page_refused: int = 0


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's heartbeat. `machine` is where its `pid` is valid.

    - `troubles`: what hinders the worker now, one line each
    - `load`: the share of a core that its process needed lately: used, or waited for
    - `left`: when the worker ended its work on the crawl in good order; 0: not yet
    - `most`: the most requests in flight at once since its last heartbeat
    - `cores`: how many its machine lets it use; 0: not known
    - `code`: the digest of the spider's code that it has loaded; empty: not known
    - `offers`: how many exits of its machine it offers, by POOL@MACHINE"""

    worker: str
    crawl: str
    host: str
    pid: int
    version: str
    slots: int
    busy: int = 0
    pages: int = 0
    pages_per_second: float = 0.0
    memory_bytes: int = 0
    started: float = 0.0
    seen: float = 0.0
    machine: str = ""
    troubles: tuple[str, ...] = ()
    load: float = 0.0
    left: float = 0.0
    most: int = 0
    figures: Figures = msgspec.field(default_factory=Figures)
    cores: int = 0
    kinds: tuple[str, ...] = (HTTP,)
    code: str = ""
    offers: dict[str, int] = msgspec.field(default_factory=dict)


class Duty(NamedTuple):
    """The answer of `hold_duty`. `is_ours`: whether the caller holds the duty; `notes`: as its holders left them;
    `term`: rises whenever the holder changes."""

    is_ours: bool
    notes: bytes
    term: int


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A crawl at one moment of its history. Counts are totals: the difference of two points is what happened between
    them.

    `at`: seconds since 1970, set by the frontier. `outcomes`: the commonest ones, the rest as "other". `fetch_times`
    and `received_bytes`: sums over the latest workers of the crawl. `workers`: how many are at work."""

    at: float = 0.0
    queued: int
    delayed: int
    leased: int
    done: int
    dead: int
    retried: int
    lost: int
    outcomes: dict[str, int]
    fetch_times: tuple[int, ...]
    received_bytes: int
    workers: int
    cost: float
