"""Surveys of a crawl as tests need them: one worker, ten seconds, one host."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.insight.survey import Survey
from shoal.model import Crawl, CrawlState, Figures, Heartbeat, LaneStatus, Progress
from shoal.worker.workers import Member, Presence

SECONDS = 10.0


def beat(worker: str = "w1", *, load: float = 0.1, cores: int = 8, megabytes: int = 100, **figures: Any) -> Heartbeat:
    return Heartbeat(
        worker=worker, crawl="c-1", host="h", pid=1, version="0", slots=32, machine="m", load=load, cores=cores,
        memory_bytes=megabytes * 1_000_000, figures=Figures(**figures),
    )  # fmt: skip


def survey(
    *workers: Heartbeat, lanes: tuple[LaneStatus, ...] = (), done: int = 0, at: float = 0.0, **more: Any
) -> Survey:
    queued, exits = more.pop("queued", 10_000), more.pop("exits", ())
    state, leased, kinds = more.pop("state", CrawlState.RUNNING), more.pop("leased", 0), more.pop("kinds", {})
    return Survey(
        crawl=Crawl(id="c-1", spider="c", **more),
        progress=Progress(state=state, queued=queued, leased=leased, done=done, kinds=kinds),
        lanes=lanes,
        exits=exits,
        members=[
            Member(msgspec.structs.replace(one, seen=one.seen or 1000.0 + at), Presence.WORKING) for one in workers
        ],
        at=at,
    )


def lane(**more: Any) -> LaneStatus:
    return LaneStatus(**{"lane": "a.example", "waiting": 1_000, "in_flight": 1, "interval": 0.0, "cap": 1_000, **more})


def between(worker: Heartbeat, *, pages: int, **more: Any) -> tuple[Survey, Survey]:
    """Ten seconds in which one worker did so many pages."""
    return survey(beat(), **more), survey(worker, done=pages, at=SECONDS, **more)
