"""What `shoal chaos` reckons: the plan that follows from a seed, the pace that a site saw, the verdict of a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.model import CrawlState, Progress, TaskState
from shoal.testing.chaos.bad_pages import DEADLY, HANGING
from shoal.testing.chaos.diary import Diary
from shoal.testing.chaos.plan import CHOICE, Deed, Plan, bad_pages, pages_for, schedule, with_deeds
from shoal.testing.chaos.report import Report, pace_of, report_on, total
from shoal.testing.chaos.survey import Survey, together
from shoal.testing.sites.catalogue import LinkGraph
from shoal.testing.sites.loopback import Hit

PAGES = 60
RATE = 40


def hits(times: Sequence[float]) -> list[Hit]:
    return [Hit(time, time, "127.0.0.1", "GET", "/", "", 200) for time in times]


def evenly(rate: float, *, seconds: float = 10.0) -> list[float]:
    return [number / rate for number in range(int(rate * seconds))]


def test_a_pace_that_is_kept_has_no_violations() -> None:
    assert pace_of(hits(evenly(RATE)), rate=RATE).violations == 0


def test_what_a_busy_machine_holds_up_is_no_violation() -> None:
    held_up = [max(time, 3.08) if 3.0 <= time < 3.08 else time for time in evenly(RATE)]
    assert pace_of(hits(held_up), rate=RATE).violations == 0


def test_a_pace_that_each_worker_keeps_for_itself_is_seen() -> None:
    pace = pace_of(hits([*evenly(RATE), *evenly(RATE)]), rate=RATE)
    assert pace.violations > RATE
    assert pace.busiest_second >= 2 * RATE > pace.allowed_second


def test_a_pace_that_is_a_little_too_fast_all_the_time_is_seen() -> None:
    assert pace_of(hits(evenly(1.1 * RATE)), rate=RATE).violations > 0


def test_a_burst_after_an_emptied_lane_is_seen() -> None:
    assert pace_of(hits([*evenly(RATE, seconds=2.0), *([2.0] * 20)]), rate=RATE).violations > 0


def plan(**fields: Any) -> Plan:
    return Plan(**{"folder": Path(), "frontier": "shoal.db", "pages": 1000, **fields})


def test_the_same_seed_does_the_same_things() -> None:
    assert schedule(plan(seed=3)) == schedule(plan(seed=3)) != schedule(plan(seed=4))


def test_everything_asked_for_is_done_in_order_while_there_are_pages_left() -> None:
    events = schedule(plan(kills=7, freezes=2, restarts=3))
    deeds = [event.deed for event in events]
    assert [deeds.count(deed) for deed in (Deed.KILL, Deed.FREEZE, Deed.RESTART)] == [7, 2, 3]
    assert deeds[0] is Deed.STRAGGLE
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert events[0].at > 0
    assert events[-1].at < 900


def test_workers_that_were_killed_often_are_relieved_by_a_new_fleet() -> None:
    deeds = [event.deed for event in schedule(plan(kills=20, freezes=0, workers=2))]
    assert deeds.count(Deed.RELIEVE) == 2
    assert deeds[: deeds.index(Deed.RELIEVE)].count(Deed.KILL) == 8


def test_the_same_seed_has_the_same_bad_pages() -> None:
    first = bad_pages(plan(seed=3, deadly=2, hanging=1))
    assert first == bad_pages(plan(seed=3, deadly=2, hanging=1)) != bad_pages(plan(seed=4, deadly=2, hanging=1))
    assert (first.of_kind(DEADLY), first.of_kind(HANGING)) == (4, 2)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_reached_only_by_a_page_that_always_harms(seed: int) -> None:
    one = plan(seed=seed, deadly=2, hanging=1, pages=100)
    graph = LinkGraph(pages=one.pages - one.apart, apart=one.apart, links=2)
    linked = {target for number in range(one.pages) for target in graph.targets(number)}
    bad = bad_pages(one)
    assert not linked & set(bad.always)
    assert set(bad.always) <= set(graph.pages_apart)
    assert set(bad.once) <= set(range(1, graph.pages))


def test_two_feeders_share_the_pages_that_no_link_leads_to_but_the_reserve() -> None:
    one = plan(dead_feeders=1, pages=1000)
    slow, other = one.parts
    assert [*slow, *other, *one.reserve] == list(range(800, 1000))
    assert one.apart == 200
    none = plan(dead_feeders=0, pages=1000)
    assert ([*none.parts[0], *none.parts[1]], none.apart) == ([], len(none.reserve))


def test_every_deed_is_due_before_the_reserve_is_needed() -> None:
    one = plan(kills=40, pages=1000)
    assert max(event.at for event in schedule(one)) < one.reserve.start


def test_what_is_done_to_servers_needs_servers_of_ones_own() -> None:
    everything = with_deeds(plan(), CHOICE, steerable=())
    assert (everything.restarts, everything.stalls, everything.resets, everything.clock_steps) == (0, 0, 0, 0)
    assert (everything.kills, everything.freezes, everything.deadly, everything.dead_feeders) == (10, 1, 2, 1)
    some = with_deeds(plan(), [Deed.STALL, Deed.CLOCK], steerable=[Deed.STALL, Deed.RESTART])
    assert (some.kills, some.freezes, some.stalls, some.restarts, some.clock_steps) == (0, 0, 1, 0, 0)


def test_more_kills_need_more_pages() -> None:
    assert pages_for(4) < pages_for(10) < pages_for(11)


def report(**fields: int) -> Report:
    names = [field.name for field in msgspec.structs.fields(Report) if field.type is int or field.name == "seconds"]
    texts = {"frontier": "sqlite", "store": "sqlite", "surprises": [], "lost_pages": [], "left_out": []}
    return msgspec.convert({**dict.fromkeys(names, 0), **texts, **fields}, Report)


def test_a_report_without_faults_is_kept() -> None:
    assert report(kills=10, recovered=100, stale_settles_refused=20).is_kept


@pytest.mark.parametrize("fault", ["lost", "duplicated", "unexpected", "pace_violations"])
def test_a_single_fault_breaks_the_promise(fault: str) -> None:
    assert not report(**{fault: 1}).is_kept


def test_runs_are_added_up_and_the_last_one_has_the_verdict() -> None:
    whole = total([report(kills=3, busiest_second=40, seed=1), report(kills=4, busiest_second=39, seed=2, lost=1)])
    assert (whole.kills, whole.busiest_second, whole.seed, whole.lost) == (7, 40, 2, 1)
    assert not whole.is_kept


NOTHING_WRONG = Survey(
    progress=Progress(state=CrawlState.FINISHED),
    attempted=0,
    acknowledged=0,
    ok=0,
    lost=[],
    duplicated=0,
    dead=0,
    charged=0,
    surprises=[],
)
NO_DEEDS = {"kills": 0, "freezes": 0, "stragglers": 0}


def test_workers_that_end_more_often_than_pages_explain_are_seen() -> None:
    diary = Diary()
    diary.ended = 1
    parts = {"diary": diary, "late_settles": 0, "seconds": 1.0}
    assert report_on(plan(**NO_DEEDS), NOTHING_WRONG, [], **parts).surprises == [
        "1 workers ended by themselves; the pages explain 0 at most"
    ]
    assert report_on(plan(**NO_DEEDS, deadly=1), NOTHING_WRONG, [], **parts).is_kept


def test_deeds_that_were_not_done_are_seen() -> None:
    diary = Diary()
    diary.done[Deed.RESET] = 2
    parts = {"diary": diary, "late_settles": 0, "seconds": 1.0}
    one = plan(**NO_DEEDS, resets=3)
    assert report_on(one, NOTHING_WRONG, [], **parts).surprises == ["2 of 3 planned deeds 'reset' were done"]
    diary.done[Deed.RESET] = 3
    assert report_on(one, NOTHING_WRONG, [], **parts).is_kept


def test_states_are_counters_by_the_same_name() -> None:
    assert set(TaskState) - {TaskState.UNKNOWN} <= set(Progress.__struct_fields__)


def test_every_crawl_has_the_pages_that_links_lead_to_and_the_reserve() -> None:
    one = plan(pages=1000, crawls=3, deadly=1)
    fed = [number for part in one.parts for number in part]
    assert sorted([*one.shared, *fed]) == list(range(1000))
    assert set(bad_pages(one).once) <= set(one.shared)
    assert set(bad_pages(one).always) <= set(fed)
    assert one.tasks == 1000 + 2 * len(one.shared)
    assert plan(pages=1000).tasks == 1000


def test_what_is_wrong_with_any_of_several_crawls_is_in_their_report() -> None:
    well = msgspec.structs.replace(NOTHING_WRONG, attempted=10, acknowledged=10, ok=10)
    ill = msgspec.structs.replace(
        well, ok=9, lost=["/g/3"], surprises=["odd"], charged=2, progress=Progress(state=CrawlState.FINISHED, lost=4)
    )
    both = together([well, ill])
    assert (both.attempted, both.ok, both.charged, both.progress.lost) == (20, 19, 2, 4)
    assert both.faults == ["lost: /g/3", "odd"]
    assert both == together([ill, well])
