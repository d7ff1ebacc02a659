"""Crawls, tasks, lane updates and results that Hypothesis makes for the calls of a frontier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
from hypothesis import strategies as st

from shoal.model import (
    VISITS,
    Budgets,
    Crawl,
    Dead,
    DeadFilter,
    Done,
    ExitUse,
    Handed,
    LaneUpdate,
    Lease,
    Limit,
    Pool,
    Released,
    Result,
    Retry,
    Task,
    Visit,
    stage_lane,
)

PLAIN, STRICT = "plain", "strict"
LANES = ["a", "b", "c", "a via p", "b via p", "c via q", "b via region:de"]
KEYS = range(24)
EXITS = ["x", "y", "z", "anna", "ben", "m1", "d1", "d2"]
SITES = ["cookies direct a.test", "cookies x b.test"]
SAMPLED = ["merged", "scope", "max_pages"]
KINDS = ["http", "browser", "eu"]
REASONS = ["http: 404", "http: 500", "timeout"]
POOL = Pool(
    name="p", exits=("x", "y"), interval=0.5, cap=2, quarantine=2.0, max_quarantine=8.0, patience=16.0, cost=0.5
)
ACCOUNTS = Pool(name="q", exits=("anna", "ben"), interval=0.0, exclusive=True, quarantine=2.0, patience=8.0)
OPEN_PLAIN = Crawl(id=PLAIN, spider="s", interval=0.0, cap=3, pools=(POOL, ACCOUNTS))
REGION_DE = Pool(name="region:de", exits=("d1",), interval=0.5, cap=2, quarantine=2.0, patience=16.0, cost=0.25)
# What a worker offers: an exit of its own to a common pool, exits to a region, one of them another worker's too.
OFFERS = {
    "w1": (msgspec.structs.replace(POOL, exits=("m1",)), REGION_DE),
    "w2": (msgspec.structs.replace(REGION_DE, exits=("d2", "d1")),),
}
crawl_names = st.sampled_from([PLAIN, STRICT])
lane_names = st.sampled_from(LANES)
tasks = st.builds(
    Task,
    url=st.sampled_from(["https://x.test/1", "https://x.test/2"]),
    key=st.sampled_from(KEYS),
    lane=lane_names,
    priority=st.integers(-1, 2),
    delay=st.sampled_from([0.0, 0.0, 0.0, 4.0]),
    max_attempts=st.integers(0, 3),
    shape=st.integers(0, 2),
    merged=st.booleans(),
    kind=st.sampled_from(["http", "http", *KINDS]),
    hastens=st.sampled_from([False, False, True]),
)
updates = st.builds(
    LaneUpdate,
    interval=st.sampled_from([None, 0.0, 0.5, 2.0]),
    if_interval=st.sampled_from([None, 0.5, 1.0]),
    base_interval=st.sampled_from([None, 0.7]),
    cap=st.sampled_from([None, 1, 4]),
    rest_seconds=st.sampled_from([None, None, 2.0, 6.0]),
    rules=st.sampled_from([None, b"", b"rules"]),
    rules_seconds=st.sampled_from([5.0, 100.0]),
    started=st.sampled_from([None, None, 0.0, 1e12]),
    why=st.sampled_from(["", "429", "é" * 130]),
    learnt=st.sampled_from([None, None, 0.25]),
)
pools = st.builds(
    Pool,
    name=st.sampled_from(["p", "q"]),
    exits=st.sampled_from([("x",), ("x", "y"), ("y", "z", "x"), ("anna", "z")]),
    interval=st.sampled_from([0.0, 0.5]),
    cap=st.integers(1, 2),
    host_interval=st.sampled_from([0.0, 0.5]),
    host_cap=st.integers(1, 3),
    exclusive=st.booleans(),
    sticky=st.booleans(),
    rotate=st.sampled_from([0.0, 4.0]),
    quarantine=st.sampled_from([0.0, 1.0, 4.0]),
    max_quarantine=st.just(8.0),
    patience=st.sampled_from([4.0, 100.0]),
    cost=st.sampled_from([0.0, 0.25]),
    cost_per_gb=st.sampled_from([0.0, 0.5]),
)
uses = st.builds(
    ExitUse,
    verdict=st.sampled_from(["ok", "ok", "blocked", "failed", "failed", "used", "unused"]),
    size=st.sampled_from([0, 500_000_000]),
    elapsed=st.sampled_from([0.0, 0.5]),
    session=st.sampled_from([None, None, b"", b"cookies"]),
)
limits = st.sampled_from(
    [
        Limit(of="note", note="items", most=4, why="max_items 4 reached"),
        Limit(of="ran", most=20.0, why="max_seconds 20 reached"),
    ]
)
changed_crawls = st.builds(
    Crawl,
    id=crawl_names,
    spider=st.just("other"),
    interval=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    cap=st.integers(1, 4),
    needs_rules=st.booleans(),
    budgets=st.builds(
        Budgets, pages=st.sampled_from([0, 12, 16]), per_lane=st.sampled_from([0, 6]), cost=st.sampled_from([0.0, 8.0])
    ),
    pools=st.lists(pools, max_size=2, unique_by=lambda pool: pool.name).map(tuple),
    settings=st.sampled_from([{}, {"depth": 3}, {"priority": -1}]),
    weight=st.sampled_from([1.0, 3.0]),
    fastest=st.sampled_from([0.0, 0.2, 0.7]),
    dedup_ttl=st.sampled_from([0.0, 3.0, 8.0, 20.0]),
    limits=st.lists(limits, max_size=2).map(tuple),
)
maybe_updates = st.none() | updates
filters = st.builds(
    DeadFilter,
    lane=st.none() | lane_names,
    reason=st.sampled_from([None, "http", "worker lost"]),
    key=st.none() | st.sampled_from(KEYS),
)


def in_its_lane(task: Task) -> Task:
    """The task in the one lane that its key belongs to, as the URL of a real one decides."""
    return msgspec.structs.replace(task, lane=LANES[task.key % 3])


def make_result(
    lease: Lease, draw: Callable[[st.SearchStrategy[Any]], Any], *, placed: Callable[[Task], Task]
) -> Result:
    lane, use = draw(maybe_updates), draw(st.none() | uses)
    match draw(st.sampled_from(["done", "done", "retry", "retry", "dead", "released", "handed", "again", "bad"])):
        case "done":
            found = [placed(task) for task in draw(st.lists(tasks, max_size=4))]
            return Done(
                lease=lease,
                found=found,
                rejected={"scope": 2},
                samples=[("scope", "u")],
                lane=lane,
                exit=use,
                notes={"items": 2},
            )
        case "again":
            later = msgspec.structs.replace(lease.task, visit=Visit(asked=5.0, visits=1))
            found = [placed(task) for task in draw(st.lists(tasks, max_size=2))]
            delay = draw(st.sampled_from([0.0, 5.0, 60.0]))
            notes = {VISITS: 1}
            return Done(lease=lease, found=found, lane=lane, exit=use, notes=notes, again=later, again_in=delay)
        case "retry":
            delay = draw(st.sampled_from([0.0, 5.0]))
            return Retry(
                lease=lease,
                reason="timeout",
                delay=delay,
                free=draw(st.booleans()),
                lane=lane,
                exit=use,
                notes={"tries": 1},
            )
        case "dead":
            return Dead(
                lease=lease,
                reason=draw(st.sampled_from(REASONS)),
                detail="why",
                lane=lane,
                exit=use,
                notes={"raised": 1},
            )
        case "released":
            return Released(lease=lease, lane=lane, exit=use)
        case "handed":
            kind = draw(st.sampled_from(KINDS))
            task = msgspec.structs.replace(
                lease.task, kind=kind, lane=stage_lane(lease.task.lane, kind), max_attempts=2
            )
            return Handed(lease=lease, task=task, lane=lane, exit=use, notes={"handed": 1})
        case _:
            return Retry(lease=lease, reason=cast(str, object()), lane=lane, exit=use)
