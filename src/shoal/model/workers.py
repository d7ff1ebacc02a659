"""What workers tell of themselves, and what is kept of a crawl while they work."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from shoal.model.leases import HTTP

# Upper bounds, in seconds, of the groups into which fetches are counted by how long they took; one group more: above.
FETCH_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has done for a crawl so far and what it cost: totals since its start.

    `fetches` are requests that ended, with an answer or a fault. `fetch_times` counts them by how long they took, by
    FETCH_BUCKETS, not cumulative; `body_seconds` is the part of their time in which bodies came. `statuses` counts them
    by class: "2xx", "3xx", "4xx", "5xx", "fault". `settles` and `writes` are calls of `frontier.settle` and
    `store.write`, `lease_calls` those of `frontier.lease`; their seconds are from call to answer. `cpu_seconds` is of
    the whole process; `parse_cpu`, `handler_cpu` and `store_cpu` are estimates of parts of it, the rest is fetching and
    shoal. `waiting_for_slots`: seconds in which all slots were taken. `page_requests` are those that rendered pages
    made themselves, `page_refused` the connections for them that the guard refused."""

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


class WorkerBeat(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's sign of life. `machine` is where its `pid` is valid.

    `troubles` says what hinders the worker now, a line each. `load` is the share of a core that its process needed
    lately: used it, or waited for its turn. `left` is when the worker ended its work on the crawl in good order, 0
    before that. `most` is how many requests it had on their way at once since its last sign. `figures` are those of
    its work on this crawl, `cores` those that its machine lets it use, 0 where that is not known. `kinds` are those of
    the tasks that it does. `code` is the digest of the spider's code that it has loaded, empty where that is not
    known. `offers`: how many exits of its machine it offers, by POOL@MACHINE."""

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
    """What `hold_duty` gives: whether the holder has the duty, what its holders have noted, and the number of the term,
    which rises whenever the duty comes to another holder."""

    is_ours: bool
    notes: bytes
    term: int


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A crawl at one moment of its history. Counts are totals so far: the difference of two points is what happened
    between them.

    `at`, in seconds since 1970, is set by the frontier. `outcomes` are the commonest ones, the rest counts as "other".
    `fetch_times` and `received_bytes` are summed over the latest workers of the crawl, `workers` counts those at
    work."""

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
