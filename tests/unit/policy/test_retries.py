from __future__ import annotations

import random
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.fetch.base import Fault, FaultKind, Response
from shoal.model import Dead, Lease, Retry, Task
from shoal.policy.retries import FAULTS, RETRIED_STATUSES, Verdict, backoff, judge, plan, retry_after
from shoal.settings.table import Settings

SETTINGS = Settings()
NOW = 1_800_000_000.0


def response(status: int, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(url="http://a/", status=status, headers=named, body=b"", wire_size=0, elapsed=0.1)


def fault(kind: FaultKind) -> Fault:
    return Fault(kind=kind, message="it broke")


def lease(*, attempt: int = 1, free_retries: int = 0, max_attempts: int = 4) -> Lease:
    task = Task(url="http://a/", key=1, lane="a", max_attempts=max_attempts)
    return Lease(crawl="c", task=task, token=1, attempt=attempt, free_retries=free_retries)


def planned(answer: Response | Fault, held: Lease, settings: Settings = SETTINGS) -> Retry | Dead:
    return plan(held, judge(answer), answer, settings=settings, rng=random.Random(1), now=NOW)


@pytest.mark.parametrize("status", [200, 201, 203, 204, 206, 299])
def test_success_goes_to_the_handler(status: int) -> None:
    assert judge(response(status)) == Verdict("ok", "handle")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_needs_somewhere_to_go(status: int) -> None:
    assert judge(response(status, location="/b")).action == "redirect"
    assert judge(response(status)) == Verdict(f"http_{status}", "skip")
    assert judge(response(status, location="")).action == "skip"


@pytest.mark.parametrize("status", [300, 304, 305, 400, 401, 403, 404, 405, 410, 418, 451, 501, 505, 599, 999])
def test_other_statuses_end_the_task_as_they_are(status: int) -> None:
    assert judge(response(status)) == Verdict(f"http_{status}", "skip")


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524])
def test_these_statuses_are_tried_again(status: int) -> None:
    verdict = judge(response(status))
    assert (verdict.action, verdict.outcome) == ("retry", f"http_{status}")
    assert RETRIED_STATUSES[status] == verdict


@pytest.mark.parametrize("status", [404, 429, 500, 302])
def test_a_spider_may_ask_to_see_other_statuses(status: int) -> None:
    asked = judge(response(status, location="/b"), handle_statuses=(status,))
    assert asked == Verdict(f"http_{status}", "handle")


def test_every_kind_of_fault_has_a_verdict_under_its_own_name() -> None:
    assert set(FAULTS) == set(FaultKind)
    assert all(judge(fault(kind)).outcome == kind.value for kind in FaultKind)


def test_a_fault_is_never_handled_or_skipped() -> None:
    assert {judge(fault(kind)).action for kind in FaultKind} == {"retry", "dead"}


@pytest.mark.parametrize(
    "answer",
    [
        response(429),
        response(503, retry_after="5"),
        fault(FaultKind.EXIT),
        fault(FaultKind.LOCAL),
        fault(FaultKind.SHORTAGE),
    ],
    ids=["429", "503 with Retry-After", "exit", "local", "shortage"],
)
def test_what_is_not_the_pages_fault_is_free(answer: Response | Fault) -> None:
    assert judge(answer).free
    assert isinstance(planned(answer, lease(attempt=4)), Retry)


@pytest.mark.parametrize("answer", [response(503), response(500), fault(FaultKind.CONNECT)])
def test_what_may_be_the_pages_fault_is_not_free(answer: Response | Fault) -> None:
    assert not judge(answer).free


@pytest.mark.parametrize(
    "answer",
    [response(429), response(503), fault(FaultKind.TIMEOUT_FIRST_BYTE), fault(FaultKind.TIMEOUT_CONNECT)],
)
def test_signs_of_a_struggling_host_slow_the_lane(answer: Response | Fault) -> None:
    assert judge(answer).slows


@pytest.mark.parametrize("answer", [response(200), response(404), response(500), fault(FaultKind.TLS)])
def test_other_answers_do_not_slow_the_lane(answer: Response | Fault) -> None:
    assert not judge(answer).slows


def test_gives_up_after_the_last_attempt() -> None:
    third = planned(response(500), lease(attempt=3))
    assert isinstance(third, Retry)
    assert not third.free
    last = planned(response(500), lease(attempt=4))
    assert isinstance(last, Dead)
    assert (last.reason, last.detail) == ("http_500", "given up after 4 attempts")


def test_gives_up_after_the_last_free_retry() -> None:
    settings = Settings(max_free_retries=2)
    assert isinstance(planned(response(429), lease(free_retries=1), settings), Retry)
    last = planned(response(429), lease(free_retries=2), settings)
    assert isinstance(last, Dead)
    assert "2 free retries" in last.detail


def test_a_fault_that_stays_is_dead_at_once_with_its_message() -> None:
    dead = planned(fault(FaultKind.TOO_LARGE), lease())
    assert isinstance(dead, Dead)
    assert dead.reason == "too_large: it broke"


def test_a_retry_after_rests_the_lane_and_the_task() -> None:
    retry = planned(response(429, retry_after="120"), lease())
    assert isinstance(retry, Retry)
    assert retry.free
    assert retry.delay >= 120
    assert retry.lane is not None
    assert retry.lane.rest_seconds == 120
    assert retry.lane.why == "429, asked to wait 120 s (Retry-After)"


def test_a_retry_after_of_a_year_is_cut_to_the_longest_rest() -> None:
    retry = planned(response(503, retry_after="31536000"), lease())
    assert retry.lane is not None
    assert retry.lane.rest_seconds == SETTINGS.max_rest_seconds
    assert retry.lane.why == "503, asked to wait 31536000 s (Retry-After)"


def test_without_a_retry_after_the_lane_does_not_rest() -> None:
    assert planned(response(429), lease()).lane is None
    assert planned(response(500, retry_after="9"), lease()).lane is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("1.5", 1.5),
        ("-5", 0.0),
        (formatdate(NOW + 90, usegmt=True), 90.0),
        (formatdate(NOW - 90, usegmt=True), 0.0),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("1e999", None),
        ("Fri, 99 Foo 2026", None),
        ("9" * 1000, 1e64),
    ],
)
def test_reads_a_retry_after(text: str, seconds: float | None) -> None:
    found = retry_after({"retry-after": text}, NOW)
    assert found == (seconds if seconds is None else pytest.approx(seconds))


def test_no_retry_after_asks_for_nothing() -> None:
    assert retry_after({}, NOW) is None


@given(st.text(max_size=80))
def test_no_retry_after_can_raise(text: str) -> None:
    found = retry_after({"retry-after": text}, NOW)
    assert found is None or found >= 0


@given(st.integers(min_value=0, max_value=10_000), st.integers())
def test_backoff_stays_between_zero_and_the_longest(attempt: int, seed: int) -> None:
    delay = backoff(attempt, SETTINGS, random.Random(seed))
    assert 0 <= delay <= SETTINGS.max_retry_seconds


def test_backoff_doubles_and_spreads_over_the_whole_range() -> None:
    def mean(attempt: int) -> float:
        rng = random.Random(7)
        return sum(backoff(attempt, SETTINGS, rng) for _ in range(2000)) / 2000

    for attempt, expected in [(1, 1.0), (2, 2.0), (3, 4.0), (20, 300.0)]:
        assert mean(attempt) == pytest.approx(expected, rel=0.1)
