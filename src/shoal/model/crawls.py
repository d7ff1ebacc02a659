"""Crawls, with the limits and the exits that they have."""

from __future__ import annotations

import enum
from typing import Any, Literal

import msgspec


class CrawlState(enum.StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    STOPPED = "stopped"


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks a crawl accepts: in all, per lane, per path shape. Zero means no limit."""

    pages: int = 0
    per_lane: int = 0
    per_shape: int = 0
    cost: float = 0.0


class Limit(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What ends a crawl before its work is done: it is stopped for the reason `why` when `of` has come to `most`.

    `of`: a "note" of this name, summed up over the crawl; "ran", the seconds in which workers were there while it was
    running; "wall", the time of day as a Unix time."""

    of: Literal["note", "ran", "wall"]
    most: float
    why: str
    note: str = ""


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Exits that a task may ask for by the pool's name, and their limits for the whole fleet.

    `interval` and `cap` hold for one exit towards one host, `host_interval` and `host_cap` for all exits of the pool
    together towards one host. An exit that is blocked or fails is quarantined for `quarantine` seconds, twice as long
    each time in a row, at most `max_quarantine`; then it is on probation: one request tries it. `exclusive`: one lease
    at a time, whatever the host. `sticky`: a host keeps its exit while the exit is healthy, at most `rotate` seconds
    (0: no limit). When no exit was usable for `patience` seconds, the tasks that wait for one are given up. `region`
    is for people to read, and so are `has_own_rate`, without which `host_interval` is the crawl's, and `written_in`,
    the table of the configuration."""

    name: str
    exits: tuple[str, ...]
    interval: float = 1.0
    cap: int = 1
    host_interval: float = 0.0
    host_cap: int = 1000
    exclusive: bool = False
    sticky: bool = False
    rotate: float = 0.0
    quarantine: float = 60.0
    max_quarantine: float = 3600.0
    patience: float = 3600.0
    cost: float = 0.0
    cost_per_gb: float = 0.0
    region: str = ""
    has_own_rate: bool = True
    written_in: str = "proxies"


class Crawl(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a spider. `interval` and `cap` are the pace a new lane starts with.

    `dedup_ttl` is how many seconds a key stays known after its task has ended; zero: for ever. `feeding`: opened to be
    fed, it is not finished before a feeder has come. `refusal`: why this shoal leaves it alone, such as that another
    version wrote it; empty: it does not. `pace_scope`: whether hosts have their limits over all crawls that say "host",
    decided when the crawl begins. It shares them with others by `weight`. `fastest`: the shortest interval to which it
    searches the pace of its hosts; 0: it does not. A new lane of a crawl that does begins with the `interval` that an
    earlier search has learnt of its host, if one is kept, but with none below `fastest`; its `base_interval` is the
    crawl's all the same. `limits`: what stops it before its work is done. `keys`: whether it knows its URLs still;
    those of a finished crawl can be dropped, in steps."""

    id: str
    spider: str
    state: CrawlState = CrawlState.RUNNING
    interval: float = 1.0
    cap: int = 8
    needs_rules: bool = False
    budgets: Budgets = msgspec.field(default_factory=Budgets)
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    feeding: bool = False
    created: float = 0.0
    finished: float | None = None
    dedup: str = "exact"
    dedup_ttl: float = 0.0
    pools: tuple[Pool, ...] = ()
    refusal: str = ""
    fastest: float = 0.0
    pace_scope: Literal["host", "crawl"] = "host"
    weight: float = 1.0
    limits: tuple[Limit, ...] = ()
    keys: Literal["known", "dropping", "dropped"] = "known"

    @property
    def priority(self) -> int:
        """Over other crawls; it lies with the settings, which every frontier keeps."""
        kept = self.settings.get("priority", 0)
        return kept if isinstance(kept, int) else 0
