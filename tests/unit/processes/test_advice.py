"""Advice on crawls that are bound by each thing, and what is said where nothing can be said."""

from __future__ import annotations

import msgspec
import pytest
from crawl_surveys import SECONDS, beat, between, lane, survey

from shoal.crawl.places import RememberedPlace, ResultPlaces
from shoal.crawl.record import CrawlRecord
from shoal.insight.advice import advise
from shoal.insight.survey import LANES_READ, measured
from shoal.insight.utilisation import NOISE, TARGET_SHARE, gain, growing, shares_of
from shoal.model import CrawlState, ExitStatus, Pool
from shoal.settings.table import Settings
from shoal.worker.workers import Member, Presence


def test_a_paced_host() -> None:
    busy = beat(fetches=40, fetch_seconds=4.0, cpu_seconds=1.0, writes=10, write_seconds=0.1)
    advice = advise(*between(busy, pages=40, lanes=(lane(interval=0.25),)))
    assert (advice.bound, advice.is_certain) == ("pace", True)
    assert advice.gain_of_doubling == pytest.approx(1.0, abs=0.05)
    assert advice.workers_wanted == 1
    assert "more workers, cores or a faster store do not" in " ".join(advice.lines)


def test_few_exits() -> None:
    pool = Pool(name="p", exits=("p/1", "p/2"), interval=1.0)
    busy = beat(fetches=20, fetch_seconds=4.0, cpu_seconds=1.0)
    advice = advise(*between(busy, pages=20, lanes=(lane(lane="a.example via p", interval=0.1),), pools=(pool,)))
    assert advice.bound == "exits"
    assert advice.gain_of_doubling == pytest.approx(1.0, abs=0.05)


def test_exits_that_rest_allow_nothing() -> None:
    """Four exits at one per second, of which one is quarantined here and one parked: two per second are all."""
    pool = Pool(name="p", exits=("p/1", "p/2", "p/3", "p/4"), interval=1.0)
    lanes = (lane(lane="a.example via p", interval=0.1),)
    uses = (
        ExitStatus(exit="p/1", lane="a.example via p", rests_for=60.0),
        ExitStatus(exit="p/2", lane="b.example via p", rests_for=60.0),
        ExitStatus(exit="p/3", lane="b.example via p", parked_for=60.0),
    )
    busy = beat(fetches=20, fetch_seconds=4.0, cpu_seconds=1.0)
    advice = advise(*between(busy, pages=20, lanes=lanes, pools=(pool,), exits=uses))
    assert advice.bound == "exits"
    assert "2 of 4 may be used now" in advice.lines[0]
    assert "`shoal exits` shows why the others rest" in advice.lines[1]


def test_a_heavy_handler() -> None:
    busy = beat(load=1.0, fetches=100, fetch_seconds=5.0, cpu_seconds=10.0, handler_cpu=8.0, parse_cpu=1.0)
    advice = advise(*between(busy, pages=100, lanes=(lane(),)))
    assert advice.bound == "cpu"
    assert "handlers 80 %" in advice.lines[0]
    assert advice.gain_of_doubling == pytest.approx(2.0, abs=0.05)
    assert advice.workers_wanted > 1


def test_a_heavy_handler_on_a_machine_whose_cores_are_used_up() -> None:
    busy = beat(load=1.0, cores=1, fetches=100, fetch_seconds=5.0, cpu_seconds=10.0, handler_cpu=8.0)
    advice = advise(*between(busy, pages=100, lanes=(lane(),)))
    assert advice.gain_of_doubling == pytest.approx(1.0, abs=0.05)
    assert any("2.0 times with machines of their own" in line for line in advice.lines)


def test_a_heavy_handler_beside_other_programs() -> None:
    busy = beat(load=1.0, cores=2, fetches=50, fetch_seconds=5.0, cpu_seconds=5.0, handler_cpu=4.0)
    advice = advise(*between(busy, pages=50, lanes=(lane(),)))
    # Four programs for two cores, of which the worker is one: with a second worker it would have two turns of five.
    assert advice.gain_of_doubling == pytest.approx(1.6, abs=0.05)
    assert "needs 100 % of a core and gets 50 %" in advice.lines[0]


def test_signs_of_life_that_are_older_than_the_surveys() -> None:
    """Ten seconds between the surveys, of which the heartbeats cover eight: 32 requests are four per second."""
    before = survey(beat(), lanes=(lane(interval=0.25),))
    later = msgspec.structs.replace(beat(fetches=32, fetch_seconds=3.2, waiting_for_slots=2.0), seen=1008.0)
    now = survey(later, lanes=(lane(interval=0.25),), done=40, at=SECONDS)
    done = measured(before, now)
    assert (done.starts, done.worker_seconds) == (4.0, 8.0)
    assert shares_of(now, done).pace == pytest.approx(1.0)
    assert shares_of(now, done).slots == pytest.approx(0.25)


def test_a_clock_that_was_set_between_two_signs_of_life() -> None:
    before = survey(beat(), lanes=(lane(interval=0.25),))
    later = msgspec.structs.replace(beat(fetches=40, fetch_seconds=4.0), seen=5000.0)
    done = measured(before, survey(later, lanes=(lane(interval=0.25),), done=40, at=SECONDS))
    assert (done.starts, done.worker_seconds) == (4.0, SECONDS)


def test_a_worker_that_joined_in_between_counts() -> None:
    before = survey(beat())
    now = survey(beat(fetches=20), beat("w2", fetches=10), done=30, at=SECONDS)
    assert measured(before, now).starts == pytest.approx(3.0)


def test_slots_that_are_all_taken() -> None:
    busy = beat(fetches=320, fetch_seconds=320.0, body_seconds=3.0, waiting_for_slots=9.8)
    advice = advise(*between(busy, pages=320, lanes=(lane(),)))
    assert (advice.bound, advice.is_certain) == ("slots", False)
    assert advice.gain_of_doubling == pytest.approx(2.0, abs=0.1)
    assert "--concurrency" in advice.lines[1]


def test_slots_that_are_taken_because_the_worker_has_no_time() -> None:
    busy = beat(load=0.9, fetches=320, fetch_seconds=320.0, cpu_seconds=9.0, waiting_for_slots=9.9)
    assert advise(*between(busy, pages=320, lanes=(lane(),))).bound == "cpu"


def test_a_full_line() -> None:
    busy = beat(fetches=320, fetch_seconds=320.0, body_seconds=300.0, received_bytes=10**8, waiting_for_slots=8.5)
    advice = advise(*between(busy, pages=320, lanes=(lane(),)))
    assert (advice.bound, advice.is_certain) == ("line", False)
    assert advice.gain_of_doubling == pytest.approx(1.0, abs=0.05)
    assert "10 MB/s" in advice.lines[0]


def test_a_slow_store() -> None:
    busy = beat(fetches=2_560, fetch_seconds=128.0, writes=10, write_seconds=9.5, settle_seconds=0.5)
    advice = advise(*between(busy, pages=2_560, lanes=(lane(),)))
    assert advice.bound == "store"
    assert "a faster store helps" in advice.lines[1]


def test_scarce_work() -> None:
    busy = beat(fetches=10, fetch_seconds=1.0)
    advice = advise(*between(busy, pages=10, lanes=(lane(waiting=1),), queued=1))
    assert (advice.bound, advice.workers_wanted) == ("links", 1)


@pytest.mark.parametrize(
    ("state", "queued", "words"),
    [(CrawlState.FINISHED, 0, "finished"), (CrawlState.PAUSED, 5, "paused"), (CrawlState.RUNNING, 0, "nothing left")],
)
def test_a_crawl_without_work_needs_no_worker(state: CrawlState, queued: int, words: str) -> None:
    one = survey(beat(), state=state, queued=queued)
    advice = advise(one, one)
    assert advice.workers_wanted == 0
    assert words in advice.lines[0]


def test_a_crawl_without_workers_needs_one() -> None:
    advice = advise(survey(), survey(at=SECONDS))
    assert advice.workers_wanted == 1
    assert advice.lines[0].startswith(
        "no worker works on c-1: repeat the command that began it, or start `shoal worker`"
    )


def test_workers_that_were_killed_are_told() -> None:
    gone = msgspec.structs.replace(survey(at=SECONDS), members=[Member(beat(), Presence.GONE)])
    assert "any more, 1 worker ended without a word" in advise(survey(), gone).lines[0]


def test_what_was_looked_at_once_is_not_measured() -> None:
    one = survey(beat(load=1.0), beat("w2", load=1.0), lanes=(lane(),))
    advice = advise(one, one)
    assert (advice.bound, advice.is_certain, advice.workers_wanted) == ("", False, 2)
    assert "not measured yet" in advice.lines[0]


def test_a_crawl_that_did_nothing_is_not_judged() -> None:
    """It has begun a moment ago, and its first page takes its time: work is not scarce for that."""
    advice = advise(*between(beat(), pages=0, queued=0, leased=1, lanes=(lane(waiting=0),)))
    assert (advice.bound, advice.is_certain, advice.workers_wanted) == ("", False, 1)
    (line,) = advice.lines
    assert line.startswith("no page of c-1 was finished in 10 s, too short a time to say what would help")
    assert "what it waits for now: the sites' answers" in line


def test_a_worker_that_had_no_time_to_finish_a_page_is_bound_by_cpu() -> None:
    busy = beat(load=1.0, cores=2, fetches=8, fetch_seconds=5.0, cpu_seconds=10.0, handler_cpu=9.0)
    advice = advise(*between(busy, pages=0, lanes=(lane(),)))
    assert advice.bound == "cpu"
    assert "(0/s)" not in " ".join(advice.lines)


def test_a_crawl_that_did_nothing_as_its_store_is_away_says_so() -> None:
    away = msgspec.structs.replace(beat(), troubles=("the store cannot be reached: refused; waiting for it",))
    lines = advise(*between(away, pages=0, lanes=(lane(),))).lines
    assert "what it waits for now: the store cannot be reached: refused" in lines[0]


def test_a_crawl_that_is_still_fed_is_not_done() -> None:
    one = survey(queued=0)
    fed = msgspec.structs.replace(one, progress=msgspec.structs.replace(one.progress, feeding=True))
    assert advise(fed, fed).lines[0].startswith("c-1 waits for its start URLs or its source")


def test_a_paused_crawl_says_why_and_how_it_goes_on() -> None:
    one = survey(beat(), state=CrawlState.PAUSED)
    why = msgspec.structs.replace(one, progress=msgspec.structs.replace(one.progress, reason="parse fails"))
    assert advise(why, why).lines == ("c-1 is paused (parse fails): no worker is needed before `shoal resume c-1`",)


def test_a_cap_that_binds_is_not_called_a_pace() -> None:
    """Eight at once of half a second each are sixteen per second."""
    busy = beat(fetches=160, fetch_seconds=80.0, cpu_seconds=1.0)
    advice = advise(*between(busy, pages=160, lanes=(lane(cap=8),)))
    assert advice.bound == "pace"
    assert "8 at once and 0.5 s each" in advice.lines[0]
    assert "--per-host" in advice.lines[1]
    assert "--rate" not in " ".join(advice.lines)


def test_where_the_frontier_is_the_slow_one_a_faster_store_is_not_advised() -> None:
    busy = beat(fetches=2_560, fetch_seconds=128.0, writes=10, write_seconds=0.5, settle_seconds=9.5)
    lines = advise(*between(busy, pages=2_560, lanes=(lane(),))).lines
    assert lines[1].startswith("a faster frontier helps; more workers do not, as a file has one writer at a time")


def test_what_does_not_help_is_not_said_to_help_a_little() -> None:
    """A share of 90 % leaves a tenth: no line says both that workers do not help, and that they bring a tenth."""
    busy = beat(fetches=36, fetch_seconds=4.0, cpu_seconds=1.0)
    lines = advise(*between(busy, pages=36, lanes=(lane(interval=0.25),))).lines
    assert "twice the workers would do hardly more pages than now" in lines


def test_where_nothing_is_used_up_nothing_is_promised() -> None:
    busy = beat(load=0.5, fetches=100, fetch_seconds=10.0, cpu_seconds=5.0)
    advice = advise(*between(busy, pages=100, lanes=(lane(),)))
    assert (advice.bound, advice.is_certain) == ("", False)
    assert "what bounds it cannot be told" in advice.lines[0]
    assert advice.lines[1] == "twice the workers may do up to 2.0 times the pages (20/s): try it"


def test_too_many_workers_on_a_paced_host_are_seen() -> None:
    workers = [beat(f"w{number}") for number in range(10)]
    later = [beat(f"w{number}", load=0.05, fetches=4, fetch_seconds=0.4) for number in range(10)]
    before = survey(*workers, lanes=(lane(interval=0.25),))
    advice = advise(before, survey(*later, lanes=(lane(interval=0.25),), done=40, at=SECONDS))
    assert (advice.workers, advice.workers_wanted) == (10, 1)


def test_more_workers_never_promise_more_than_their_number() -> None:
    before, now = between(beat(load=0.01, fetches=1, fetch_seconds=0.1), pages=1, lanes=(lane(),))
    done = measured(before, now)
    shares = shares_of(now, done)
    for times in (1.0, 2.0, 5.0):
        assert gain(shares, done, times=times, grows=growing(now.crawl), own_machines=True) <= times


def test_slots_that_are_used_are_needed_also_while_none_is_waited_for() -> None:
    """Thirty pages per second of five seconds each fill 150 of the 192 slots of six workers; none of these is spare."""
    workers = [beat(f"w{number}", fetches=50, fetch_seconds=250.0) for number in range(6)]
    lanes = (lane(interval=1 / 30),)
    before = survey(*(beat(f"w{number}") for number in range(6)), lanes=lanes)
    advice = advise(before, survey(*workers, lanes=lanes, done=300, at=SECONDS))
    assert (advice.bound, advice.workers_wanted) == ("pace", 6)


@pytest.mark.parametrize(("load", "wanted"), [(0.92, 3), (0.6, 3), (0.5, 2), (1.0, 4)])
def test_noise_does_not_change_the_number_of_workers(load: float, wanted: int) -> None:
    lanes = (lane(interval=0.1),)
    before = survey(*(beat(f"w{number}") for number in range(3)), lanes=lanes)
    later = [beat(f"w{number}", load=load, fetches=33, fetch_seconds=1.0) for number in range(3)]
    assert advise(before, survey(*later, lanes=lanes, done=100, at=SECONDS)).workers_wanted == wanted


def test_a_host_that_rests_allows_nothing() -> None:
    lanes = (lane(interval=0.25), lane(lane="b.example", interval=0.01, starts_in=600.0))
    busy = beat(load=0.5, fetches=40, fetch_seconds=4.0)
    assert advise(*between(busy, pages=40, lanes=lanes)).workers_wanted == 1


def test_a_time_in_which_the_pace_allows_no_page_says_nothing_of_workers_that_do_nothing() -> None:
    """One page in half a minute: that none ended in ten seconds is no reason to keep five workers."""
    workers = [beat(f"w{number}") for number in range(5)]
    slow, quick = (lane(interval=30.0, starts_in=20.0),), (lane(interval=0.1),)
    for lanes, wanted in ((slow, 1), (quick, 5)):
        before, now = (survey(*workers, lanes=lanes, leased=1, at=at) for at in (0.0, SECONDS))
        assert advise(before, now).workers_wanted == wanted


def test_a_store_server_that_is_used_up_keeps_its_workers_and_gets_no_more() -> None:
    place = ResultPlaces(store=RememberedPlace(url="postgresql://db.example/results"))
    settings = msgspec.to_builtins(CrawlRecord(settings=Settings(), results=place))
    busy = beat(load=0.1, fetches=2_560, fetch_seconds=128.0, writes=10, write_seconds=9.5, settle_seconds=0.5)
    before = survey(beat(), beat("w2"), lanes=(lane(),), settings=settings)
    now = survey(
        busy, msgspec.structs.replace(busy, worker="w2"), lanes=(lane(),), settings=settings, done=5_120, at=SECONDS
    )
    advice = advise(before, now)
    assert (advice.bound, advice.workers_wanted) == ("store", 2)


def test_a_worker_that_joined_a_moment_ago_did_all_it_did_since_then() -> None:
    """Ten pages in the two seconds since it began are five per second, not one."""
    joined = msgspec.structs.replace(beat("w2", fetches=10), started=1008.0)
    assert measured(survey(beat()), survey(beat(fetches=20), joined, done=30, at=SECONDS)).starts == pytest.approx(7.0)


def test_of_more_hosts_than_are_read_about_twice_the_workers_are_wanted_at_most() -> None:
    """Their paces are not all known: four workers at 40 % of a core each are enough for something that is not seen."""
    lanes = tuple(lane(lane=f"h{number}.example", interval=60.0) for number in range(LANES_READ))
    workers = [beat(f"w{number}", load=0.4, fetches=100, fetch_seconds=10.0) for number in range(4)]
    before = survey(*(beat(f"w{number}") for number in range(4)), lanes=lanes)
    enough = 4 * 0.4 / TARGET_SHARE
    advice = advise(before, survey(*workers, lanes=lanes, done=400, at=SECONDS))
    assert enough <= advice.workers_wanted <= 2 * NOISE * enough
