"""A crawl: its state, budgets, limits and pools of exits."""

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
    """Stops a crawl early, for the reason `why`, when the value of `of` reaches `most`.

    `of`: "note": the sum of this note over the crawl; "ran": the seconds in which the crawl was running and had
    workers; "wall": the time of day as a Unix time."""

    of: Literal["note", "ran", "wall"]
    most: float
    why: str
    note: str = ""


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A named set of exits, with limits that hold for the whole fleet. Tasks ask for it by name.

    `interval` and `cap` hold for one exit towards one host, `host_interval` and `host_cap` for all exits of the pool
    together towards one host. An exit that is blocked or fails is quarantined for `quarantine` seconds, twice as long
    each time in a row, at most `max_quarantine`; then it is on probation: one request tries it. `exclusive`: one lease
    at a time, whatever the host. `sticky`: a host keeps its exit while the exit is healthy, at most `rotate` seconds
    (0: no limit). When no exit was usable for `patience` seconds, the tasks that wait for one are given up.

    Only shown to people: `region`; `has_own_rate`: False when `host_interval` is the crawl's; `written_in`: the table
    of the configuration that has the pool."""

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
    """One run of a spider. `interval` and `cap` are the pace of new lanes.

    - `dedup_ttl`: seconds for which a key stays known after its task has ended; 0: for ever
    - `feeding`: the crawl was opened to be fed: it does not finish before its first feeder has come
    - `refusal`: why this shoal does not work on the crawl, such as an unknown layout; empty: it works on it
    - `pace_scope`: "host": all crawls with this value share the limits of a host, by `weight`; fixed when the crawl
      begins
    - `fastest`: the shortest interval that the search for a host's pace may reach; 0: no search. A new lane of a
      crawl that searches begins with the interval learnt for its host, if that is kept, but never below `fastest`;
      its `base_interval` is the crawl's all the same
    - `limits`: stop the crawl before its work is done
    - `keys`: whether the keys of its URLs are still known; those of a finished crawl can be dropped, in steps"""

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
        """The crawl's priority over other crawls, from its settings."""
        kept = self.settings.get("priority", 0)
        return kept if isinstance(kept, int) else 0
