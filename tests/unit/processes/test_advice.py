"""Advice on crawls that are bound by each thing, and what is said where nothing can be said."""

from __future__ import annotations

import msgspec
import pytest
from crawl_surveys import SECONDS, beat, between, lane, survey

from shoal.model import CrawlState, Pool
from shoal.processes.advice import advise, gain, growing, shares_of
from shoal.processes.crawl_survey import measured


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
    """Ten seconds between the surveys, of which the signs of life cover eight: 32 requests are four per second."""
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
    assert "start one" in advice.lines[0]


def test_what_was_looked_at_once_is_not_measured() -> None:
    one = survey(beat(load=1.0), beat("w2", load=1.0), lanes=(lane(),))
    advice = advise(one, one)
    assert (advice.bound, advice.is_certain, advice.workers_wanted) == ("", False, 2)
    assert "not measured yet" in advice.lines[0]


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
