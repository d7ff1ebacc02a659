"""What an answer says of its exit, and when a page that is turned away is given up."""

from __future__ import annotations

import pytest

from shoal.exits.refusals import HELD_AGAINST, ExitRefusal, ending_of, refusal_of, unused, verdict_on
from shoal.fetch.base import Fault, FaultKind
from shoal.model import DIRECT, Dead, ExitUse, Retry
from shoal.policy.retries import judge
from shoal.testing.fakes import fault, lease_for, respond

URL = "https://a.test/page"
BLOCKED = ExitRefusal(kind="blocked", outcome="http_403", reason="http_403")
FAILED = ExitRefusal(kind="failed", outcome="exit", reason="exit: gone")


@pytest.mark.parametrize("status", [403, 407, 429])
def test_a_status_that_turns_a_visitor_away_blocks_its_exit(status: int) -> None:
    answer = respond(URL, status=status)
    refusal = refusal_of(answer, judge(answer))
    assert refusal is not None
    assert (refusal.kind, refusal.outcome) == ("blocked", f"http_{status}")


def test_a_key_that_a_site_does_not_take_is_blocked_and_only_a_key() -> None:
    answer = respond(URL, status=401)
    refusal = refusal_of(answer, judge(answer), had_key=True)
    assert refusal is not None
    assert (refusal.kind, refusal.outcome) == ("blocked", "http_401")
    assert refusal_of(answer, judge(answer)) is None


@pytest.mark.parametrize("status", [200, 301, 404, 410, 500, 503])
def test_other_answers_say_nothing_against_an_exit(status: int) -> None:
    answer = respond(URL, "<p>text", status=status, headers={"location": "/x"})
    assert refusal_of(answer, judge(answer)) is None


def test_a_known_block_page_blocks_its_exit_whatever_its_status() -> None:
    answer = respond(URL, "<script>window._cf_chl_opt={}</script>")
    refusal = refusal_of(answer, judge(answer))
    assert refusal is not None
    assert (refusal.kind, refusal.reason) == ("blocked", "blocked: cloudflare challenge")


def test_a_status_that_the_spider_wants_to_see_is_its_own_to_judge() -> None:
    answer = respond(URL, "<script>window._cf_chl_opt={}</script>", status=403)
    assert refusal_of(answer, judge(answer, handle_statuses=(403,))) is None


@pytest.mark.parametrize("kind", list(FaultKind))
def test_what_fails_on_the_way_fails_its_exit(kind: FaultKind) -> None:
    refusal = refusal_of(fault(kind), judge(fault(kind)))
    is_the_ways = kind in ("exit", "connect", "tls", "truncated", "protocol") or kind.startswith("timeout")
    assert (refusal is not None and refusal.kind == "failed") == is_the_ways


def test_a_page_that_is_turned_away_is_tried_again_for_free_and_at_once() -> None:
    result = ending_of(lease_for(URL, free_retries=4), BLOCKED, most_tries=6, exits=50)
    assert isinstance(result, Retry)
    assert (result.free, result.delay, result.lane) == (True, 0.0, None)


def test_a_page_that_is_turned_away_everywhere_is_given_up() -> None:
    result = ending_of(lease_for(URL, free_retries=5), BLOCKED, most_tries=6, exits=50)
    assert isinstance(result, Dead)
    assert result.reason == "blocked: turned away through 6 exits"
    assert "http_403" in result.detail
    alone = ending_of(lease_for(URL, free_retries=5), BLOCKED, most_tries=6, exits=1)
    assert isinstance(alone, Dead)
    assert alone.reason == "blocked: turned away 6 times through 1 exit"


def test_tries_that_exits_are_known_to_have_failed_are_no_refusals_of_the_page() -> None:
    retry = ending_of(lease_for(URL, free_retries=5), BLOCKED, most_tries=6, exits=8, failures=5)
    assert isinstance(retry, Retry)
    dead = ending_of(lease_for(URL, free_retries=10), BLOCKED, most_tries=6, exits=8, failures=5)
    assert dead.reason == "blocked: turned away through 6 exits"


def test_where_exits_fail_a_page_has_a_try_for_each_of_them() -> None:
    assert isinstance(ending_of(lease_for(URL, free_retries=49), FAILED, most_tries=6, exits=50), Retry)
    assert isinstance(ending_of(lease_for(URL, free_retries=50), FAILED, most_tries=6, exits=50), Dead)
    assert isinstance(ending_of(lease_for(URL, free_retries=4), FAILED, most_tries=6, exits=1), Retry)


@pytest.mark.parametrize("refusal", [BLOCKED, FAILED])
def test_the_first_tries_of_a_page_count_against_their_exits_and_later_ones_do_not(refusal: ExitRefusal) -> None:
    verdicts = [
        verdict_on(lease_for(URL, free_retries=number), refusal, exits=50) for number in range(HELD_AGAINST + 2)
    ]
    assert verdicts == [refusal.kind] * HELD_AGAINST + ["used", "used"]


@pytest.mark.parametrize(("exits", "held"), [(1, 1), (2, 1), (3, 1), (4, 2), (6, 3), (50, 3)])
def test_one_page_cannot_rest_more_than_half_of_a_small_pool(exits: int, held: int) -> None:
    verdicts = [verdict_on(lease_for(URL, free_retries=number), BLOCKED, exits=exits) for number in range(6)]
    assert verdicts == ["blocked"] * held + ["used"] * (6 - held)


@pytest.mark.parametrize(("exits", "held"), [(1, 1), (2, 1), (3, 2), (6, 5)])
def test_in_a_sticky_pool_one_page_can_rest_all_exits_but_one(exits: int, held: int) -> None:
    leases = [lease_for(URL, free_retries=number) for number in range(6)]
    verdicts = [verdict_on(lease, BLOCKED, exits=exits, is_sticky=True) for lease in leases]
    assert verdicts == ["blocked"] * held + ["used"] * (6 - held)


def test_a_failed_login_always_counts_against_its_account() -> None:
    refusal = ExitRefusal(kind="failed", outcome="login", reason="login: no", is_certain=True)
    assert verdict_on(lease_for(URL, free_retries=99), refusal, exits=1) == "failed"


@pytest.mark.parametrize("is_certain", [True, False])
def test_a_failure_that_is_certainly_the_exits_always_counts(*, is_certain: bool) -> None:
    answer = Fault(kind=FaultKind.EXIT, message="gone", is_certain=is_certain)
    refusal = refusal_of(answer, judge(answer))
    assert refusal is not None
    assert verdict_on(lease_for(URL, free_retries=9), refusal, exits=50) == ("failed" if is_certain else "used")


def test_only_an_exit_that_was_lent_can_be_unused() -> None:
    assert unused(lease_for(URL, exit=DIRECT)) is None
    assert unused(lease_for(URL, exit="pool/x")) == ExitUse(verdict="unused")
