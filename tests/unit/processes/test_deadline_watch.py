"""A crawl that will not be done by its deadline: said once, with what would help, and when that changes."""

from __future__ import annotations

from typing import Any

from shoal.insight.deadline import CHANGED_SECONDS, DeadlineWatch
from shoal.insight.stats import Snapshot
from shoal.model import Crawl, CrawlState, Heartbeat, LaneStatus, Limit, Progress

HOUR = 3600.0
CRAWL = Crawl(id="c", spider="s", limits=(Limit(of="wall", most=10 * HOUR, why="deadline 06:00 passed"),))
WORKER = Heartbeat(worker="w", crawl="c", host="h", pid=1, version="0", slots=10)


def snapshot(needs: float | None, **fields: Any) -> Snapshot:
    values = {
        "crawl": CRAWL,
        "progress": Progress(state=CrawlState.RUNNING, queued=7200),
        "workers": [WORKER, WORKER],
        "elapsed": 20.0,
        "eta_seconds": needs,
        "bound": "handlers and parsing: workers need 99 % of a core each",
        **fields,
    }
    return Snapshot(**values)


def lane(seconds: float) -> LaneStatus:
    return LaneStatus(lane="a.test", waiting=100, in_flight=0, interval=seconds / 100, cap=8)


def test_says_once_that_it_is_late_and_how_many_workers_it_takes() -> None:
    watch = DeadlineWatch()
    line = watch.look(snapshot(3 * HOUR), now=9 * HOUR)
    assert "7,200 tasks known now need 3.0 h, 60 min are left; 2 workers at work, about 6 would do it" in line
    assert "bound by handlers and parsing" in line
    assert all(watch.look(snapshot(3 * HOUR), now=9 * HOUR + second) == "" for second in range(200))


def test_says_what_no_worker_can_change() -> None:
    line = DeadlineWatch().look(snapshot(3 * HOUR, last_lanes=[lane(3 * HOUR)]), now=9 * HOUR)
    assert "a.test takes 3.0 h, whatever is added: 2/m helps (--rate, or `shoal pace`)" in line
    exits = DeadlineWatch().look(snapshot(3 * HOUR, bound="every exit of ring rests until 12:00"), now=9 * HOUR)
    assert exits.endswith("what bounds it is every exit of ring rests until 12:00")
    assert DeadlineWatch().look(snapshot(3 * HOUR, workers=[]), now=9 * HOUR).endswith("no worker is at work")


def test_says_when_another_thing_helps_and_when_it_is_in_time_again() -> None:
    watch = DeadlineWatch()
    assert watch.look(snapshot(3 * HOUR), now=9 * HOUR)
    paced = snapshot(3 * HOUR, last_lanes=[lane(3 * HOUR)])
    assert watch.look(paced, now=9 * HOUR) == ""
    assert watch.look(snapshot(3 * HOUR), now=9 * HOUR + 30) == ""  # it was the workers after all
    assert watch.look(paced, now=9 * HOUR + 40) == ""
    assert "--rate, or" in watch.look(paced, now=9 * HOUR + 40 + CHANGED_SECONDS)
    assert watch.look(snapshot(HOUR * 0.95), now=9 * HOUR + 200) == ""  # neither late nor in time
    assert "will be done by its deadline" in watch.look(snapshot(HOUR * 0.5), now=9 * HOUR + 200)
    assert watch.look(snapshot(HOUR * 0.5), now=9 * HOUR + 201) == ""


def test_says_nothing_without_a_deadline_before_it_is_measured_or_when_it_is_over() -> None:
    late = 9 * HOUR
    assert DeadlineWatch().look(snapshot(3 * HOUR, crawl=Crawl(id="c", spider="s")), now=late) == ""
    assert DeadlineWatch().look(snapshot(3 * HOUR, elapsed=5.0), now=late) == ""
    assert DeadlineWatch().look(snapshot(None), now=late) == ""
    assert DeadlineWatch().look(snapshot(1.05 * HOUR), now=late) == ""
    assert DeadlineWatch().look(snapshot(3 * HOUR), now=11 * HOUR) == ""
    paused = Progress(state=CrawlState.PAUSED, queued=7200)
    assert DeadlineWatch().look(snapshot(3 * HOUR, progress=paused), now=late) == ""
