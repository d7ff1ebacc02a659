"""What limits a crawl: every cause has a line of its own, and none is more certain than it can be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shoal.crawl.record import CrawlRecord
from shoal.fetch.descriptors import FEWER_PAGES, trouble_of_shortage
from shoal.insight.bounds import CrawlReading, bound_of
from shoal.model import Crawl, CrawlState, Heartbeat, Held, LaneStatus, Pool, Progress
from shoal.policy.politeness import lent_interval
from shoal.settings.table import Settings
from shoal.worker.workers import crawls_beside

ASKED = lent_interval(1.0)
RING = Pool(name="ring", exits=("ring/x", "ring/y"), interval=lent_interval(2.0))
SHOP = Pool(
    name="shop",
    exits=("shop/anna",),
    interval=0.0,
    exclusive=True,
    has_own_rate=False,
    host_interval=ASKED,
    written_in="accounts",
)
HOST_PACED = Pool(name="host", exits=("host/x",), interval=0.0, host_interval=lent_interval(0.1))
CRAWL = Crawl(id="c", spider="s", interval=ASKED, needs_rules=True, pools=(RING, SHOP, HOST_PACED))
REFUSED = "login refused: shop/anna: the spider's login returned False"


def lane(name: str = "a.test", **fields: Any) -> LaneStatus:
    values = {"lane": name, "waiting": 10, "in_flight": 1, "interval": ASKED, "cap": 8, "starts_in": 0.5, **fields}
    return LaneStatus(**{"base_interval": values["interval"], **values})


def worker(**fields: Any) -> Heartbeat:
    values = {"worker": "w", "crawl": "c", "host": "h", "pid": 1, "version": "0", "slots": 10, **fields}
    return Heartbeat(**values)


def bound(*lanes: LaneStatus, **fields: Any) -> str:
    progress = Progress(state=CrawlState.RUNNING, queued=20)
    return bound_of(
        CrawlReading(**{"crawl": CRAWL, "progress": progress, "lanes": lanes, "workers": [worker()], **fields})
    )


def state(**fields: Any) -> str:
    return bound(progress=Progress(**{"state": CrawlState.RUNNING, **fields}))


def test_slots_that_other_crawls_have_as_well() -> None:
    full = [worker(slots=2, busy=2)]
    assert bound(workers=full).startswith("the answers of the sites, or this machine")
    also = "slots: its workers share them with"
    assert bound(workers=full, beside=["news-1"]).startswith(f"{also} news-1; `shoal priority`, --concurrency")
    assert bound(workers=full, beside=["a", "b", "c"]).startswith(f"{also} a and 2 other crawls; ")
    here, there = worker(), worker(pid=2)
    others = [worker(crawl="d", busy=1), worker(crawl="e"), worker(crawl="f", pid=2, busy=1), worker(crawl="d", busy=2)]
    assert crawls_beside([here], [here, there, *others]) == ["d"]
    assert crawls_beside([], others) == []


def test_a_pause_says_whose_it_is() -> None:
    assert state(state=CrawlState.PAUSED, queued=1) == "paused by an operator; `shoal resume` lets it go on"
    assert state(state=CrawlState.PAUSED, queued=1, reason="too many failures") == "paused: too many failures"


def test_what_is_no_pace_at_all() -> None:
    assert bound(workers=[]) == "workers: none is at work"
    assert state() == "finished"
    assert state(feeding=True) == "waiting for a source"
    stays = msgspec.structs.replace(CRAWL, settings=msgspec.to_builtins(CrawlRecord(settings=Settings(), stays=True)))
    open_one = Progress(state=CrawlState.RUNNING, feeding=True)
    assert bound(crawl=stays, progress=open_one) == "waiting for URLs from outside"
    assert state(delayed=3) == "retries that wait for their time"
    assert bound(lane(starts_in=90.0)) == "every host rests; a.test for 90 s more"
    resting = lane(starts_in=90.0, rests_for=90.0, why="429, asked to wait 90 s (Retry-After)")
    assert bound(resting).endswith("a.test for 90 s more: 429, asked to wait 90 s (Retry-After)")
    assert bound(lane(interval=0.0)) == "the sites' answers"
    full = "pages in hand: a.test has 8 of 8; --per-host changes it"
    assert bound(lane(in_flight=8, starts_in=0.0)) == full
    assert "--concurrency" in bound(lane(interval=0.0), workers=[worker(busy=9)])


def test_a_worker_that_is_silent_while_others_are_not_is_named() -> None:
    hung, alive = worker(worker="hung", busy=3, seen=100.0), worker(worker="alive", busy=1, seen=112.0)
    line = "no heartbeat from worker hung for 12 s: it cannot reach the frontier, or a handler blocks it"
    assert bound(lane(interval=0.0), workers=[alive, hung]) == line
    idle = worker(worker="idle", seen=100.0)
    assert bound(lane(interval=0.0), workers=[alive, idle]) == "the sites' answers"


def test_a_pace_that_was_asked_for_names_what_changes_it() -> None:
    assert bound(lane()) == "politeness: a.test at 1/s; --rate changes it"
    assert bound(lane("a.test via shop")) == "politeness: a.test via shop at 1/s, the spider's rate; --rate changes it"
    assert bound(lane("a.test via host", interval=HOST_PACED.host_interval)) == (
        "politeness: a.test via host at 10/s, the pool's rate; `host_rate` of [proxies.host] changes it"
    )


def test_exits_of_a_region_that_are_all_in_use_are_what_bounds_it() -> None:
    line = bound(lane("a.test via region:eu", waits_for_exit=True))
    assert line == (
        "the exits that workers offer for the region eu: all of them are in use or wait for their turn; more of them"
        " help, or a higher `rate` in the files of --exits"
    )
    # One more rests, and comes back long after a request through another one has ended.
    assert bound(lane("a.test via region:eu", waits_for_exit=True, starts_in=55.0)) == line
    alone = lane("a.test via region:eu", waits_for_exit=True, starts_in=55.0, in_flight=0)
    assert bound(alone) == "every host rests; a.test via region:eu for 55 s more"


def test_a_pace_of_the_exits_is_the_pools() -> None:
    paced = lane("a.test via ring", interval=0.0, waits_for_exit=True)
    assert bound(paced) == (
        "politeness: a.test via ring at 30/m per exit, the pool's rate; `rate` of [proxies.ring] changes it,"
        " and so do more exits"
    )
    # An exit at 1/m is not at rest.
    slow = Crawl(id="c", spider="s", pools=(Pool(name="ring", exits=("ring/x",), interval=lent_interval(60.0)),))
    waiting = lane("a.test via ring", interval=0.0, waits_for_exit=True, starts_in=50.0)
    assert bound(waiting, crawl=slow).startswith("politeness: a.test via ring at 1/m per exit, the pool's rate")
    used = bound(lane("a.test via shop", interval=0.0, base_interval=ASKED, waits_for_exit=True))
    assert used == (
        "the exits of shop: all of them are in use or wait for their turn; more exits in [accounts.shop] help"
    )


def test_a_pace_that_nobody_asked_for_names_its_origin_as_far_as_it_is_known() -> None:
    slower = lane(interval=4 * ASKED, base_interval=ASKED)
    assert "slower than asked for: its answers call for that" in bound(slower)
    assert bound(lane(), crawl=Crawl(id="c", spider="s", interval=ASKED, fastest=0.1)).endswith(
        ", where its search begins"
    )
    faster = lane(interval=ASKED / 4, base_interval=ASKED)
    assert bound(faster).endswith(", found by its search")
    assert bound(msgspec.structs.replace(faster, why="knee near 9/s")).endswith(", found by its search: knee near 9/s")
    five = lane(interval=lent_interval(5.0))
    told = "politeness: a.test at 12/m, "
    assert bound(five, rules_version=3, crawl_delay=5.0) == (
        f"{told}slower than asked for: robots.txt has Crawl-delay 5 s"
    )
    assert bound(five, rules_version=1) == f"{told}set by `shoal pace`"
    assert bound(five, rules_version=1, crawl_delay=2.0) == f"{told}set by `shoal pace`"
    assert bound(five, rules_version=2) == f"{told}slower than asked for: by `shoal pace`, or by an earlier robots.txt"
    assert bound(five) == f"{told}slower than asked for: by `shoal pace`, or by an earlier robots.txt"
    ignoring = Crawl(id="c", spider="s", interval=ASKED)
    assert bound(five, crawl=ignoring) == f"{told}set by `shoal pace`"
    assert bound(lane(interval=lent_interval(0.1)), crawl=ignoring) == "politeness: a.test at 10/s, set by `shoal pace`"


def test_exits_that_all_rest_say_until_when_and_why() -> None:
    resting = lane("a.test via ring", interval=0.0, starts_in=3600.0, exits_rest=True)
    assert bound(resting).startswith("every exit of ring rests until ")
    assert bound(resting, lane("b.test", starts_in=0.0)).startswith("every exit of ring rests until ")
    down = worker(troubles=("proxy ring/x is down: connection refused", "proxy other/x is down: no route"))
    assert bound(resting, workers=[down]).endswith(": proxy ring/x is down: connection refused")
    due = lane("a.test via ring", interval=0.0, starts_in=0.0, exits_rest=True)
    assert "every exit" not in bound(due)


def test_logins_that_are_refused_are_named() -> None:
    resting = lane("a.test via shop", starts_in=3600.0, exits_rest=True)
    told = bound(resting, workers=[worker(troubles=(REFUSED,)), worker(troubles=(REFUSED,))])
    assert told.startswith("logins refused: shop/anna (the spider's login returned False); every account of shop rests")


@pytest.mark.parametrize(
    "line",
    [
        "the store: waiting for 12 s: cannot reach PostgreSQL: refused",
        "the disk of the store is full: waiting for 2 s: x",
    ],
)
def test_a_store_that_is_waited_for_comes_before_any_pace(line: str) -> None:
    assert bound(lane(), workers=[worker(troubles=(line,))]) == line
    assert bound(lane(), workers=[worker(troubles=(line,)), worker()]) == f"{line} (1 of 2 workers)"


def test_what_a_machine_lacks_comes_before_any_pace() -> None:
    used_up = trouble_of_shortage("Too many open files (os error 24)")
    assert used_up.startswith("open files: all ")
    assert used_up.endswith("raise the limit with ulimit -n")
    assert bound(lane(), workers=[worker(troubles=(used_up,)), worker()]) == f"{used_up} (1 of 2 workers)"


def test_a_limit_that_allows_fewer_pages_bounds_a_crawl_when_they_are_all_in_hand() -> None:
    fewer = f"open files: 18 pages at once instead of 64, as 100 allow{FEWER_PAGES}"
    assert bound(workers=[worker(slots=18, busy=17, troubles=(fewer,))]) == fewer
    assert bound(workers=[worker(slots=18, busy=2, troubles=(fewer,))]) != fewer


def test_workers_without_a_sign_of_life_are_not_taken_for_polite_ones() -> None:
    quiet = "no heartbeat from any worker for 5 s: "
    assert bound(lane(), quiet_seconds=5.2) == f"{quiet}they cannot reach the frontier, or a handler blocks them"
    said = "shoal.db: the disk is full; waiting"
    assert bound(lane(), quiet_seconds=5.2, waiting=said) == quiet + said


def test_the_cpu_bounds_a_crawl_when_all_workers_use_theirs() -> None:
    told = "handlers and parsing: workers need 98 % of a core each; --workers helps while cores are free"
    assert bound(lane(), workers=[worker(load=0.97), worker(load=0.99)]) == told
    assert bound(lane(), workers=[worker(load=0.97), worker(load=0.1)]).startswith("politeness")


def test_a_kind_that_no_worker_does_is_named_with_the_command() -> None:
    crawl = Crawl(id="c", spider="s", settings={"spider": "books.py"})
    waiting = Progress(state=CrawlState.RUNNING, queued=2, delayed=1, kinds={"http": 0, "browser": 3})
    command = "`shoal worker books.py --kinds browser` does"
    line = f"workers: 3 tasks of the kind browser wait, and no worker does such tasks: {command}"
    assert bound(crawl=crawl, progress=waiting) == line
    assert bound(crawl=crawl, progress=waiting, workers=[worker(kinds=("http", "browser"))]) != line
    both = Progress(state=CrawlState.RUNNING, queued=4, kinds={"http": 1, "browser": 3})
    assert "browser" not in bound(crawl=crawl, progress=both)
    plain = Progress(state=CrawlState.RUNNING, queued=1)
    assert "`shoal worker books.py --kinds http` does" in bound(
        crawl=crawl, progress=plain, workers=[worker(kinds=("browser",))]
    )


@pytest.mark.parametrize(
    ("held", "line"),
    [
        (Held(crawl="n-1", by="turn", interval=ASKED, turns=1), "politeness: a.test at 1/s, in turns with n-1; --rate"),
        (
            Held(crawl="n-1", by="turn", interval=ASKED, turns=3, more=2),
            "politeness: a.test at 1/s, in turns with n-1 and 2 other crawls; --rate changes it",
        ),
        (
            Held(crawl="n-1", by="pace", interval=lent_interval(4.0)),
            "politeness: a.test at 15/m, the pace of n-1",
        ),
        (Held(crawl="n-1", by="rules"), "a.test: n-1 fetches its robots.txt"),
        (
            Held(crawl="n-1", by="cap"),
            "pages in hand: a.test: with those of n-1 it has as many requests in flight as it may; --per-host of each",
        ),
    ],
)
def test_a_host_that_waits_for_another_crawl_names_it(held: Held, line: str) -> None:
    assert bound(lane(held=held)).startswith(line)


def test_a_rest_that_another_crawl_was_asked_for_names_it() -> None:
    held = Held(crawl="n-1", by="rest", seconds=90.0)
    assert bound(lane(starts_in=90.0, held=held)).endswith("a.test for 90 s more: the host asked n-1 to wait")


def test_a_host_at_the_slow_pace_of_another_crawl_does_not_rest() -> None:
    held = Held(crawl="n-1", by="pace", interval=lent_interval(60.0))
    assert bound(lane(starts_in=50.0, held=held)) == "politeness: a.test at 1/m, the pace of n-1"
