"""The rate of a crawl, the time left, and what limits it."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.insight.stats import Meter, Silence, cost_so_far, describe_interval, eta, spent_budget
from shoal.model import Budgets, Crawl, CrawlState, Heartbeat, LaneStatus, Pool, Progress
from shoal.policy.politeness import lent_interval
from shoal.worker.tally import CpuLoad

CRAWL = Crawl(id="c", spider="s", interval=1.0)


def running(**counts: Any) -> Progress:
    return Progress(**{"state": CrawlState.RUNNING, **counts})


def lane(name: str = "a.test", **fields: Any) -> LaneStatus:
    return LaneStatus(
        **{
            "lane": name,
            "waiting": 10,
            "in_flight": 1,
            "interval": lent_interval(1.0),
            "cap": 8,
            "starts_in": 0.5,
            **fields,
        }
    )


def worker(**fields: Any) -> Heartbeat:
    values = {"worker": "w", "crawl": "c", "host": "h", "pid": 1, "version": "0", "slots": 10, **fields}
    return Heartbeat(**values)


def test_the_rate_is_that_of_the_last_minute() -> None:
    meter = Meter()
    rates = []
    for now, done in ((0, 0), (10, 50), (60, 50), (120, 50), (130, 60)):
        progress = running(queued=5, done=done, dead=0)
        rates.append(meter.read(CRAWL, progress, lanes=[], workers=[], now=float(now)).rate)
    assert rates[:2] == [0.0, 5.0]
    assert rates[3] == 0.0
    assert rates[4] == 1.0


def test_the_first_rate_is_what_the_workers_say() -> None:
    snapshot = Meter().read(
        CRAWL, running(queued=5, retried=2, dead=1), lanes=[], workers=[worker(pages_per_second=4.0)], now=7.0
    )
    assert (snapshot.rate, snapshot.elapsed) == (4.0, 0.0)
    assert snapshot.eta_seconds == pytest.approx(5 / 4)


def test_the_time_left_is_not_known_while_nobody_does_some_of_the_tasks() -> None:
    progress = running(queued=5, kinds={"http": 2, "http@eu": 3})
    for kinds, seconds in ((("http",), None), (("http", "http@eu"), pytest.approx(5 / 4))):
        beat = worker(kinds=kinds, pages_per_second=4.0)
        assert Meter().read(CRAWL, progress, lanes=[], workers=[beat], now=7.0).eta_seconds == seconds


def test_the_slowest_lane_names_the_time_that_politeness_asks_for() -> None:
    lanes = [lane(waiting=10), lane("slow.test", waiting=4, interval=30.0, starts_in=5.0)]
    snapshot = Meter().read(CRAWL, running(queued=14), lanes=lanes, workers=[], now=0.0)
    assert (snapshot.slowest_lane, snapshot.eta_seconds) == ("slow.test", 125.0)


def test_the_time_left() -> None:
    assert eta(running(), 5.0, 3.0) == 0.0
    assert eta(running(queued=10), 0.0, 0.0) is None
    assert eta(running(queued=10), 0.0, 3.0) == 3.0
    assert eta(running(queued=10), 2.0, 1.0) == 5.0
    assert eta(running(queued=10), 2.0, 9.0) == 9.0


@pytest.mark.parametrize(
    ("interval", "text"),
    [(0.0, "unlimited"), (0.25, "4/s"), (1.0, "1/s"), (2.0, "30/m"), (60.0, "1/m"), (120.0, "30/h")],
)
def test_an_interval_reads_as_the_rate_people_write(interval: float, text: str) -> None:
    assert describe_interval(lent_interval(interval)) == text


def test_a_pause_that_the_budget_caused_is_told_from_one_that_people_asked_for() -> None:
    crawl = Crawl(id="c", spider="s", budgets=Budgets(cost=5.0))
    paused = Progress(state=CrawlState.PAUSED, queued=1, cost=5.0)
    assert spent_budget(crawl, paused) == "the budget of 5.00 is spent; run it again with --set budget=10"
    assert spent_budget(crawl, running(queued=1, cost=5.0)) == ""
    assert spent_budget(crawl, Progress(state=CrawlState.PAUSED, queued=1, cost=3.2)) == ""
    assert cost_so_far(crawl, running(cost=3.2)) == "cost 3.20 of 5.00"
    assert cost_so_far(CRAWL, running(cost=3.2)) == "cost 3.20"
    assert cost_so_far(CRAWL, running()) == ""


def test_a_lane_whose_exits_have_a_rate_takes_as_long_as_they_need() -> None:
    crawl = Crawl(id="c", spider="s", pools=(Pool(name="ring", exits=("x", "y"), interval=4.0),))
    lanes = [lane("a.test via ring", waiting=10, interval=0.0, starts_in=0.0)]
    snapshot = Meter().read(crawl, running(queued=10), lanes=lanes, workers=[], now=0.0)
    assert (snapshot.eta_seconds, snapshot.lanes) == (20.0, lanes)


def test_the_load_of_a_process_is_its_share_of_the_time() -> None:
    needed, now = iter([1.0, 1.5, 1.5]), iter([0.0, 2.0, 2.0])
    load = CpuLoad(needed=lambda: next(needed), clock=lambda: next(now))
    assert (load.read(), load.read()) == (0.25, 0.0)


def test_silence_lasts_until_the_next_sign_of_life() -> None:
    silence = Silence()
    assert [silence.read([worker(seen=seen)], now=now) for seen, now in ((5.0, 0.0), (5.0, 3.0), (9.0, 4.0))] == [
        0,
        3,
        0,
    ]
