"""What a deadline takes and costs: one large machine, several small ones, or nothing that helps."""

from __future__ import annotations

from typing import Any

import pytest
from crawl_surveys import beat, between, lane

from shoal.insight.advice import advise
from shoal.insight.deadline import Plan, plan_for, plan_lines
from shoal.insight.survey import measured
from shoal.model import Pool
from shoal.settings.table import Settings
from shoal.settings.values import MachineSize, parse_machines

SMALL, LARGE = MachineSize(2, 4.0, 0.10), MachineSize(8, 16.0, 0.30)


def planned(*machines: MachineSize, seconds: float = 3600.0, pages: int = 100, **more: Any) -> Plan:
    """For a crawl that did so many pages in ten seconds; its worker needs 85 % of a core for ten pages per second."""
    figures = {"load": 0.85, "fetches": pages, "fetch_seconds": 5.0, "cpu_seconds": 8.5, **more.pop("figures", {})}
    before, now = between(beat(**figures), pages=pages, **{"lanes": (lane(),), "queued": 216_000, **more})
    return plan_for(now, advise(before, now), measured(before, now), seconds=seconds, machines=machines)


def test_small_machines_are_cheaper_where_the_large_one_is_not_filled() -> None:
    plan = planned(SMALL, LARGE)
    assert (plan.workers, round(plan.cores, 3), round(plan.gigabytes, 3)) == (6, 6.0, 0.6)
    assert plan.up is not None
    assert plan.out is not None
    assert (plan.up.machines, plan.up.cores, plan.up.workers_each, plan.up.cost) == (1, 8, 6, pytest.approx(0.3))
    assert (plan.out.machines, plan.out.cores, plan.out.workers_each, plan.out.cost) == (3, 2, 2, pytest.approx(0.3))
    # The same price: fewer machines are less to look after.
    assert plan.cheapest == plan.up
    dear = planned(SMALL, LARGE._replace(price=0.40))
    assert dear.cheapest == dear.out


def test_workers_with_much_memory_need_more_machines() -> None:
    plan = planned(SMALL, LARGE, figures={"megabytes": 3_000})
    assert (plan.workers, round(plan.gigabytes)) == (6, 18)
    assert plan.out is not None
    assert plan.cheapest is not None
    # Of 4 GB 3.2 are there for workers, of 16 GB 12.8: the large machine has cores for all, and memory for four.
    assert (plan.out.machines, plan.out.workers_each) == (6, 1)
    assert plan.up is None
    assert (plan.cheapest.machines, plan.cheapest.cores, plan.cheapest.workers_each) == (2, 8, 4)
    lines = plan_lines(plan, "1h", is_shared=True)
    assert "scaled up: no size in `machines` of the settings is large enough for all of them" in lines
    assert "cheapest: 2 machines of 8 cores and 16 GB, about 0.60" in lines


def test_a_worker_that_fits_on_no_machine() -> None:
    plan = planned(SMALL, figures={"megabytes": 5_000})
    assert (plan.up, plan.out, plan.cheapest) == (None, None, None)
    (line,) = plan_lines(plan, "1h", is_shared=True)
    assert line.endswith("no size in `machines` of the settings is large enough for a worker")


def test_the_plan_in_words() -> None:
    assert plan_lines(planned(SMALL, LARGE._replace(price=0.40)), "1h", is_shared=True) == [
        "within 1h, for the 216,000 pages known now: 6 workers (6.0 cores as fast as these, 0.6 GB)",
        "scaled up: 1 machine of 8 cores and 16 GB, about 0.40",
        "scaled out: 3 machines of 2 cores and 4 GB, about 0.30",
        "cheapest: scaled out, about 0.30",
    ]


def test_several_machines_need_a_frontier_that_all_reach() -> None:
    (line,) = [line for line in plan_lines(planned(SMALL, LARGE), "1h", is_shared=False) if "scaled out" in line]
    assert "that needs a frontier and a store on servers" in line


def test_one_small_machine_that_is_enough_is_said_in_a_line() -> None:
    (line,) = plan_lines(planned(SMALL, LARGE, seconds=36_000.0, queued=90_000), "10h", is_shared=False)
    assert "1 worker, as many as are at work" in line
    assert line.endswith("1 machine of 2 cores and 4 GB does it: about 1.00")


def test_a_deadline_that_the_pace_does_not_allow() -> None:
    two = (lane(interval=0.5, waiting=1_000), lane(lane="b.example", interval=0.5, waiting=1_000))
    figures = {"fetches": 40, "load": 0.1, "cpu_seconds": 1.0}
    plan = planned(SMALL, seconds=600.0, pages=40, lanes=two, queued=14_400, figures=figures)
    assert plan.workers is None
    assert plan.why.startswith("not possible: the hosts' paces allow it in 60 min at best")


def test_a_deadline_that_one_slow_host_does_not_allow() -> None:
    """All hosts together would be quick enough; the pages of one of them are not."""
    lanes = (lane(interval=1.0, waiting=7_200), lane(lane="b.example", interval=0.01, waiting=10))
    figures = {"fetches": 100, "load": 0.1, "cpu_seconds": 1.0}
    plan = planned(SMALL, seconds=3600.0, lanes=lanes, queued=7_210, figures=figures)
    assert plan.workers is None
    assert plan.why.startswith("not possible: the 7,200 pages of a.example take 2.0 h at its pace")


def test_a_deadline_that_the_exits_do_not_allow() -> None:
    pool = Pool(name="p", exits=("p/1", "p/2"), interval=1.0)
    lanes = (lane(lane="a.example via p", interval=0.1), lane(lane="b.example via p", interval=0.1))
    figures = {"fetches": 40, "load": 0.1, "cpu_seconds": 1.0}
    plan = planned(SMALL, pages=40, lanes=lanes, pools=(pool,), queued=28_800, figures=figures)
    assert plan.workers is None
    assert plan.why == "not possible: the exits allow it in 2.0 h at best; more exits help"


def test_nothing_is_reckoned_from_nothing() -> None:
    assert planned(SMALL, pages=0, figures={"fetches": 0}).why.startswith("not known: no page was finished")
    scarce = planned(SMALL, pages=10, queued=1, lanes=(lane(waiting=1),), figures={"load": 0.1, "cpu_seconds": 1.0})
    assert scarce.why.startswith("not known: work is scarce")


def test_the_default_machines_can_be_read() -> None:
    sizes = parse_machines(Settings().machines)
    assert sizes == sorted(sizes, key=lambda size: size.price)
