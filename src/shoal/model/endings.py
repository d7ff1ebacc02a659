"""How leases end, and what the frontier answers to it."""

from __future__ import annotations

from typing import Literal

import msgspec

from shoal.model.leases import Lease, Task

DUPLICATE = "duplicate"  # the reason under which links to known pages are counted


class LaneUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The change that a response makes to its lane; applied in the same step as the settle that carries it.

    `if_interval` guards `interval`: many responses that ask for the same slow-down change the pace once.
    `base_interval` is the lane's own pace, to which an adaptive one returns. `started` is the request's start slot on
    the frontier's clock: a refusal of a request that started before the lane's latest slow-down or the end of its rest
    belongs to the same wave of refusals, and neither slows the lane again nor lets it take another short rest.
    `why` is for people to read, and not for URLs: the reason of the rest or of the slow-down; with a `base_interval`,
    of that pace. `learnt` is the interval that a search has found to be good for the host: kept for its next crawls.
    """

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
    got through), "used" (sent, but it says nothing about the exit) or "unused" (no request was sent).

    `size` is the bytes received through it. `session` replaces the session kept for the exit; empty: log in again."""

    verdict: Literal["ok", "blocked", "failed", "used", "unused"] = "ok"
    size: int = 0
    elapsed: float = 0.0
    session: bytes | None = None


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The task is finished; the tasks it found appear with it or not at all. `notes` are counted for people to read,
    whatever they are called.

    `again`: the page is visited again in `again_in` seconds. The task goes on as this one, which has its key and a lane
    of the same host, with all its attempts; it counts as delayed, not as done."""

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
    """Give up; the task is kept whole with the reason."""

    lease: Lease
    reason: str
    detail: str = ""
    lane: LaneUpdate | None = None
    exit: ExitUse | None = None
    notes: dict[str, int] = msgspec.field(default_factory=dict)


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """Handed back untouched: at shutdown, or after opening a lane. Uses up no attempt."""

    lease: Lease
    lane: LaneUpdate | None = None
    exit: ExitUse | None = None


class Handed(msgspec.Struct, frozen=True, kw_only=True):
    """Handed over to the next stage: the task goes on as `task`, which has its key, and all its attempts. Its lane is
    one of the same host: see `stage_lane`."""

    lease: Lease
    task: Task
    lane: LaneUpdate | None = None
    exit: ExitUse | None = None
    notes: dict[str, int] = msgspec.field(default_factory=dict)


Result = Done | Retry | Dead | Released | Handed


class PutReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one put. `refused` names the budget that kept each key out."""

    new: int = 0
    duplicates: int = 0
    refused: dict[int, str] = msgspec.field(default_factory=dict)


class SettleReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one settle call. `stale` leases were lost before it; `refused` names the budget for each key that
    one kept out.

    `failed` says, by its index in the call, why a result could not be applied; its lease stands. `duplicates` are the
    found tasks whose keys were known, each as the token of its lease and its key; not those that live in another shard.
    """

    stale: list[Lease] = msgspec.field(default_factory=list)
    refused: dict[int, str] = msgspec.field(default_factory=dict)
    epoch: int = 0
    failed: dict[int, str] = msgspec.field(default_factory=dict)
    duplicates: list[tuple[int, int]] = msgspec.field(default_factory=list)
