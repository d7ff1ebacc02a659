"""What is worth an alert, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.duties.alerts.config import AlertRules
from shoal.duties.alerts.rules import Disk, WatchedCrawl, disk_findings, findings_of, sink_findings
from shoal.model import Budgets, Crawl, CrawlState, Heartbeat, Point, Progress
from shoal.store.base import SinkPlace, SinkState
from shoal.worker.workers import Member, Presence

NOW = 1_000_000.0
MINUTE = 60.0
RUNNING = CrawlState.RUNNING


def point(minutes_ago: float, **counts: Any) -> Point:
    zero = dict.fromkeys(("queued", "delayed", "leased", "done", "dead", "retried", "lost"), 0)
    rest = {"outcomes": {}, "fetch_times": (), "received_bytes": 0, "workers": 1, "cost": 0.0}
    return Point(at=NOW - minutes_ago * MINUTE, **{**zero, **rest, **counts})


def member(presence: Presence = Presence.WORKING, *, ago: float = 0.0, name: str = "w", **fields: Any) -> Member:
    beat = Heartbeat(worker=name, crawl="c", host="h", pid=1, version="1", slots=1, seen=NOW - ago, **fields)
    return Member(beat, presence)


def watched(
    *, points: Any = (), crew: Any = (), budget: float = 0.0, mean: float | None = None, **counts: Any
) -> WatchedCrawl:
    progress = Progress(**{"state": RUNNING, "queued": 10, **counts})
    crawl = Crawl(id="c", spider="s", created=NOW - 3600, budgets=Budgets(cost=budget))
    return WatchedCrawl(crawl=crawl, progress=progress, now=NOW, points=points, crew=crew, write_seconds=mean)


def found(seen: WatchedCrawl, **rules: Any) -> list[str]:
    return [finding.text for finding in findings_of(seen, AlertRules(**rules))]


def queue_of(*numbers: int) -> list[Point]:
    """A point a minute, the last one now."""
    return [point(len(numbers) - 1 - index, queued=number) for index, number in enumerate(numbers)]


@pytest.mark.parametrize(
    ("numbers", "grows"),
    [
        (range(0, 110, 10), True),
        (range(110, 0, -10), False),
        ([50] * 11, False),
        ([0, 10, 20, 30, 40, 50, 40, 30, 20, 10, 0], False),
        ([0, 50, 10, 60, 20, 70, 30, 80, 40, 90, 99], True),
    ],
)
def test_a_queue_grows_when_it_grows_in_every_fifth_of_the_time(numbers: Any, grows: bool) -> None:
    assert bool(found(watched(points=queue_of(*numbers)), queue_growing=10 * MINUTE)) is grows


def test_a_history_that_is_too_short_says_nothing_of_a_queue() -> None:
    assert not found(watched(points=queue_of(0, 10, 20, 30, 40)), queue_growing=10 * MINUTE)
    assert not found(watched(points=[]), queue_growing=10 * MINUTE)


@pytest.mark.parametrize(("dead", "fires"), [(30, True), (20, False)])
def test_the_share_of_errors_counts_what_happened_in_the_window(dead: int, fires: bool) -> None:
    before = [point(30, done=0, dead=500), point(9, done=100, dead=500, retried=7)]
    seen = watched(points=before, done=180, dead=500 + dead, retried=7)
    assert bool(found(seen, error_share=0.2)) is fires


def test_a_handful_of_attempts_is_no_share() -> None:
    assert not found(watched(points=[point(9)], done=1, dead=5), error_share=0.2)


def test_no_page_for_long_is_no_progress() -> None:
    points = [point(12, done=5), point(5, done=5)]
    rules = {"no_progress": 10 * MINUTE}
    (text,) = found(watched(points=points, done=5, crew=[member()]), **rules)
    assert text == "c: no page has ended for 10 minutes; 10 tasks left, 1 worker at work"
    assert not found(watched(points=points, done=6, crew=[member()]), **rules)
    assert not found(watched(points=points[1:], done=5, crew=[member()]), **rules)
    assert not found(watched(points=points, done=5, crew=[member()], state=CrawlState.PAUSED), **rules)
    assert not found(watched(points=points, done=5, crew=[member()], queued=0), **rules)


def test_a_crawl_that_people_have_stopped_makes_no_progress_on_purpose() -> None:
    points, rules = [point(12, done=5)], {"no_progress": 10 * MINUTE}
    assert not found(watched(points=points, done=5, crew=[member(Presence.LEFT)]), **rules)
    assert found(watched(points=points, done=5, crew=[member(Presence.LEFT), member(Presence.GONE, ago=900)]), **rules)
    assert not found(watched(points=points, done=5, crew=[member(Presence.GONE, ago=200_000)]), **rules)


def test_a_worker_that_is_gone_without_a_word_is_lost_for_a_while() -> None:
    lost = [member(Presence.GONE, ago=30, name=f"w{number}") for number in range(5)]
    (text,) = found(watched(crew=lost), worker_lost=10 * MINUTE)
    assert text == "c: 5 workers lost in the last 10 minutes: w0, w1, w2 and 2 more"
    assert not found(watched(crew=[member(Presence.LEFT), member()]), worker_lost=10 * MINUTE)
    assert not found(watched(crew=[member(Presence.GONE, ago=700)]), worker_lost=10 * MINUTE)


def test_dead_letters_are_too_many_above_the_number_also_after_the_end() -> None:
    assert found(watched(dead=11), dead_letters=10)
    assert found(watched(dead=11, state=CrawlState.FINISHED), dead_letters=10)
    assert found(watched(dead=1), dead_letters=0)
    assert not found(watched(dead=10), dead_letters=10)


def test_a_budget_is_spent_from_its_share_on() -> None:
    assert found(watched(budget=10.0, cost=9.0), budget_spent=0.9)
    assert not found(watched(budget=10.0, cost=8.9), budget_spent=0.9)
    assert not found(watched(cost=8.9), budget_spent=0.9)


def test_a_deadline_is_missed_by_a_crawl_that_is_not_finished() -> None:
    assert found(watched(), deadline=3000.0)
    assert found(watched(state=CrawlState.PAUSED), deadline=3000.0)
    assert not found(watched(), deadline=4000.0)
    assert not found(watched(state=CrawlState.FINISHED), deadline=3000.0)


def test_a_store_is_slow_by_its_writes_or_when_workers_wait_for_it() -> None:
    assert found(watched(mean=2.5), store_slow=2.0) == ["c: a write to its store takes 2.5 s"]
    assert not found(watched(mean=1.5), store_slow=2.0)
    assert not found(watched(), store_slow=2.0)
    waits = member(troubles=("the store: waiting for 40 s: cannot reach PostgreSQL",))
    assert found(watched(crew=[waits]), store_slow=2.0) == ["c: the store: waiting for 40 s: cannot reach PostgreSQL"]


def test_a_disk_is_nearly_full_below_the_share() -> None:
    disks = [Disk("/a", 4, 100), Disk("/b", 5, 100), Disk("/none", 0, 0)]
    (finding,) = disk_findings(disks, AlertRules(disk_free=0.05))
    assert (finding.about, finding.text) == ("/a", "only 4 % of /a is free")
    assert not disk_findings(disks, AlertRules())


def test_what_is_not_watched_for_is_not_found() -> None:
    assert not found(watched(dead=1000, points=queue_of(*range(20)), crew=[member(Presence.GONE)]))


def test_a_sink_is_behind_when_its_oldest_change_has_waited_too_long() -> None:
    place = SinkPlace(spider="books", url="https://hooks.test/books")
    sinks = [
        SinkState(id=1, place=place, added=0.0, waiting=2, oldest=NOW - 20 * MINUTE, trouble="it answers 500"),
        SinkState(id=2, place=place, added=0.0, waiting=9, oldest=NOW - 10 * MINUTE),
        SinkState(id=3, place=place, added=0.0, trouble="it answered 500, but nothing waits"),
    ]
    (finding,) = sink_findings(sinks, AlertRules(sink_behind=15 * MINUTE), now=NOW)
    assert finding.about == "books https://hooks.test/books"
    behind = "2 changes wait, the oldest for 20 minutes: it answers 500"
    assert finding.text == f"the sink https://hooks.test/books of books is behind: {behind}"
    assert not sink_findings(sinks, AlertRules(), now=NOW)
