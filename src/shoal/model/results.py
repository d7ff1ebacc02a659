"""The results with which leases end, and the frontier's reports on them."""

from __future__ import annotations

from typing import Literal

import msgspec

from shoal.model.leases import Lease, Task

DUPLICATE = "duplicate"  # the reason under which links to known pages are counted


class LaneUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The change that a response makes to its lane; applied in the same step as the settle that carries it.

    - `if_interval`: `interval` counts only if the lane still has this one, so that many responses slow it down once
    - `base_interval`: the lane's own pace, to which an adaptive interval returns
    - `started`: the request's start slot on the frontier's clock. The refusal of a request that started before the
      lane's latest slow-down or the end of its rest is of the same wave: no further slow-down or short rest follows
    - `why`: the reason of the rest or the slow-down, or of the `base_interval`; shown to people, never a URL
    - `learnt`: the interval that a search has found for the host; kept for the next crawls"""

    interval: float | None = None
    if_interval: float | None = None
    base_interval: float | None = None
    cap: int | None = None
    rest_seconds: float | None = None
    rules: bytes | None = None
    rules_seconds: float = 0.0
    started: float | None = None
    why: str = ""
    learnt: float | None = None


class ExitUse(msgspec.Struct, frozen=True, kw_only=True):
    """The report on the exit of a lease. `verdict`: "ok", "blocked" (the host refused the exit), "failed" (no request
    got through), "used" (sent, without a verdict on the exit) or "unused" (no request was sent).

    `size`: bytes received through the exit. `session`: replaces the session kept for the exit; empty: log in again."""

    verdict: Literal["ok", "blocked", "failed", "used", "unused"] = "ok"
    size: int = 0
    elapsed: float = 0.0
    session: bytes | None = None


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The task is finished; the tasks it `found` are stored with it or not at all. `notes` are counters by name, shown
    to people.

    `again`: the page is visited again in `again_in` seconds. The task is replaced by `again`, which has the same key, a
    lane of the same host and all its attempts; it counts as delayed, not as done."""

    lease: Lease
    outcome: str = "ok"
    found: list[Task] = msgspec.field(default_factory=list)
    rejected: dict[str, int] = msgspec.field(default_factory=dict)
    samples: list[tuple[str, str]] = msgspec.field(default_factory=list)
    lane: LaneUpdate | None = None
    exit: ExitUse | None = None
    notes: dict[str, int] = msgspec.field(default_factory=dict)
    again: Task | None = None
    again_in: float = 0.0


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Try again after `delay` seconds. A free retry gives the attempt back."""

    lease: Lease
    reason: str
    delay: float = 0.0
    free: bool = False
    lane: LaneUpdate | None = None
    exit: ExitUse | None = None
    notes: dict[str, int] = msgspec.field(default_factory=dict)


class Dead(msgspec.Struct, frozen=True, kw_only=True):
    """The task is given up: kept whole, with the reason, as a dead letter."""

    lease: Lease
    reason: str
    detail: str = ""
    lane: LaneUpdate | None = None
    exit: ExitUse | None = None
    notes: dict[str, int] = msgspec.field(default_factory=dict)


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """The task was not tried: at shutdown, or after opening a lane. Uses up no attempt."""

    lease: Lease
    lane: LaneUpdate | None = None
    exit: ExitUse | None = None


class Handed(msgspec.Struct, frozen=True, kw_only=True):
    """Handed over to the next stage: replaced by `task`, which has the same key, all its attempts and a lane of the
    same host (see `stage_lane`)."""

    lease: Lease
    task: Task
    lane: LaneUpdate | None = None
    exit: ExitUse | None = None
    notes: dict[str, int] = msgspec.field(default_factory=dict)


Result = Done | Retry | Dead | Released | Handed


class PutReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one put. `refused`: by key, the budget that refused it."""

    new: int = 0
    duplicates: int = 0
    refused: dict[int, str] = msgspec.field(default_factory=dict)


class SettleReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one settle call.

    - `stale`: the leases that were lost before; `refused`: by key of a found task, the budget that refused it
    - `failed`: by index in the call, why a result could not be applied; its lease stands
    - `duplicates`: the found tasks whose keys were known, as (token of the lease, key); without tasks of another shard
    """

    stale: list[Lease] = msgspec.field(default_factory=list)
    refused: dict[int, str] = msgspec.field(default_factory=dict)
    epoch: int = 0
    failed: dict[int, str] = msgspec.field(default_factory=dict)
    duplicates: list[tuple[int, int]] = msgspec.field(default_factory=list)
