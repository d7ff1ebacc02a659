"""The frontier's rules, case by case; the Lua scripts are driven over the same cases."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import rule_cases
from rule_cases import NOW

from shoal.frontier.rules import exits, hosts, keys, lanes, tasks
from shoal.frontier.rules.crawl_time import Expected, is_noted, ran_since, reckon, was_away
from shoal.frontier.rules.exits import Parking, Quarantine
from shoal.frontier.rules.hosts import Limits, OtherLane
from shoal.frontier.rules.lanes import Pace, bring_back, possible_start
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.frontier.sqlite.pools import Roster
from shoal.model import Crawl, ExitUse, LaneUpdate, Pool
from shoal.testing.clock import FakeClock


def make_pool(**limits: Any) -> Pool:
    return Pool(name="p", exits=("x",), **limits)


@pytest.mark.parametrize(("given", "seconds"), rule_cases.REST_SECONDS)
def test_an_exit_rests_twice_as_long_after_each_failure_in_a_row(given: Any, seconds: float) -> None:
    quarantine, most, failures = given
    assert exits.rest_seconds(make_pool(quarantine=quarantine, max_quarantine=most), failures) == seconds


@pytest.mark.parametrize(("given", "expected"), rule_cases.QUARANTINE_AFTER)
def test_failures_during_a_quarantine_do_not_prolong_it(given: Any, expected: Any) -> None:
    quarantine, most, *before = given
    pool = make_pool(quarantine=quarantine, max_quarantine=most)
    assert exits.quarantine_after(Quarantine(*before), pool, now=NOW) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.PARKING_AFTER)
def test_an_exit_is_parked_after_failures_towards_different_lanes(given: Any, expected: Any) -> None:
    quarantine, most, lane, token, before = given
    pool = make_pool(quarantine=quarantine, max_quarantine=most)
    assert exits.parking_after(Parking(*before), pool, lane=lane, token=token, now=NOW) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.PARKING_ON_TRIAL)
def test_one_lease_tries_an_exit_after_its_parking(given: Any, expected: Any) -> None:
    quarantine, token, before = given
    pool = make_pool(quarantine=quarantine)
    assert exits.parking_on_trial(Parking(*before), pool, token=token, now=NOW) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.PUT_OFF)
def test_parked_and_held_exits_are_put_off(given: Any, expected: Any) -> None:
    parked_until, is_held, next_start = given
    assert exits.put_off(parked_until, is_held=is_held, next_start=next_start, now=NOW) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.KEEPS_EXIT)
def test_a_host_of_a_sticky_pool_keeps_its_exit_for_a_while(given: Any, expected: bool) -> None:
    rotate, since, parked_until = given
    pool = make_pool(sticky=True, rotate=rotate)
    assert exits.keeps_exit(pool, since=since, parked_until=parked_until, now=NOW) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.STARVED_SINCE)
def test_a_lane_starves_from_when_no_exit_is_healthy(given: Any, expected: float) -> None:
    before, has_healthy = given
    assert exits.starved_since(before, has_healthy=has_healthy, now=NOW) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.GIVES_UP)
def test_a_lane_gives_up_when_its_patience_is_over(given: Any, expected: bool) -> None:
    patience, since, has_healthy, first_rest = given
    pool = None if patience is None else make_pool(patience=patience)
    first_rest = math.inf if first_rest is None else first_rest
    given_up = exits.gives_up(pool, starved_since=since, has_healthy=has_healthy, first_rest=first_rest, now=NOW)
    assert given_up == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.LOOK_AGAIN_AT)
def test_a_lane_is_looked_at_when_an_exit_is_free_or_its_patience_ends(given: Any, expected: float | None) -> None:
    free_at, patience, since = given
    free_at = math.inf if free_at is None else free_at
    at = exits.look_again_at(free_at, make_pool(patience=patience), starved_since=since, now=NOW)
    assert at == (math.inf if expected is None else expected)


def make_roster(values: Any, **more: Any) -> Roster:
    marks, flights, next_starts, next_index = values
    return Roster(next_index, bytes(marks).rstrip(b"\0"), dict(flights), dict(next_starts), **more)


@pytest.mark.parametrize(("given", "expected"), rule_cases.DUE_IN_RING)
def test_the_ring_goes_on_with_the_next_healthy_exit_that_is_due(given: Any, expected: int | None) -> None:
    roster, size, cap = given
    assert make_roster(roster).due_in_ring(size, cap, now=NOW) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.NEXT_FREE)
def test_knows_when_an_exit_is_free_next(given: Any, expected: float | None) -> None:
    values, first_rest, size, cap = given
    roster = make_roster(values, first_rest=math.inf if first_rest is None else first_rest)
    assert roster.next_free(size, cap, now=NOW) == (math.inf if expected is None else expected)


@pytest.mark.parametrize(("given", "expected"), rule_cases.COSTS)
def test_a_used_exit_costs_by_request_and_by_size(given: Any, expected: float) -> None:
    cost, cost_per_gb, verdict, size = given
    pool = None if cost is None else make_pool(cost=cost, cost_per_gb=cost_per_gb)
    use = None if verdict is None else ExitUse(verdict=verdict, size=size)
    assert exits.cost_of(pool, use) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.TAKE_SLOT)
def test_the_next_slot_of_a_lane_is_an_interval_later(given: Any, expected: Any) -> None:
    at, next_start, interval, blocked_until = given
    slot = lanes.take_slot(at, next_start=next_start, interval=interval, blocked_until=blocked_until, now=NOW)
    assert slot == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.RESERVED_START)
def test_a_missed_slot_is_moved_if_it_is_the_latest_of_its_lane(given: Any, expected: Any) -> None:
    next_start, last_start, interval, blocked_until, missed = given
    start = lanes.reserved_start(
        next_start=next_start,
        last_start=last_start,
        interval=interval,
        blocked_until=blocked_until,
        missed=missed,
        now=NOW,
    )
    assert start == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.UPDATE_PACE)
def test_an_update_changes_the_pace_that_its_response_saw(given: Any, expected: Any) -> None:
    pace, (interval, if_interval, base_interval, cap, rest_seconds, *started) = given
    update = LaneUpdate(
        interval=interval,
        if_interval=if_interval,
        base_interval=base_interval,
        cap=cap,
        rest_seconds=rest_seconds,
        started=started[0] if started else None,
    )
    assert lanes.update_pace(Pace(*pace), update, now=NOW) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.TAKES_WHY)
def test_the_update_that_rests_or_slows_a_lane_says_why(given: Any, expected: bool) -> None:
    before, after, is_own_pace = given
    assert lanes.takes_why(Pace(*before), Pace(*after), is_own_pace=is_own_pace, now=NOW) is expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.SHOWS_WHY)
def test_a_reason_holds_while_the_lane_rests_or_is_slow(given: Any, expected: bool) -> None:
    assert lanes.shows_why(Pace(*given), now=NOW) is expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.FOLLOW_PACE)
def test_a_lane_follows_the_pace_that_it_had_from_its_crawl(given: Any, expected: Any) -> None:
    pace, old, new = given
    assert lanes.follow_pace(Pace(*pace), old=old, new=new, now=NOW) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.FOLLOW_PACE)
async def test_a_lane_in_sqlite_follows_by_the_same_rule(tmp_path: Path, given: Any, expected: Any) -> None:
    pace, old, new = given
    columns = "next_start, last_start, blocked_until, interval, base_interval, cap"
    frontier = await SqliteFrontier.open(tmp_path / "shoal.db", clock=FakeClock(NOW))
    await frontier.open_crawl(Crawl(id="c", spider="s", interval=old[0], cap=old[1]))
    await frontier.update_lane("c", "a.test", LaneUpdate())
    with contextlib.closing(sqlite3.connect(tmp_path / "shoal.db")) as db:
        db.execute(f"UPDATE lane SET ({columns}) = (?, ?, ?, ?, ?, ?)", pace)
        db.commit()
        await frontier.open_crawl(Crawl(id="c", spider="s", interval=new[0], cap=new[1]))
        assert db.execute(f"SELECT {columns} FROM lane").fetchone() == expected
    await frontier.close()


@pytest.mark.parametrize(("given", "expected"), rule_cases.STARTS_WITHIN)
def test_a_lane_lends_what_it_can_start_within_the_horizon(given: Any, expected: int) -> None:
    most, interval, next_start, horizon = given
    count = lanes.starts_within(most, interval=interval, next_start=next_start, horizon=horizon, now=NOW)
    assert count == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.ASK_AGAIN)
def test_a_worker_asks_again_when_something_can_be_lent(given: Any, expected: float) -> None:
    assert lanes.ask_again_in(given, now=NOW) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.NEXT_TOKEN)
def test_tokens_rise_with_every_lease_and_with_the_clock(given: Any, expected: int) -> None:
    last, now = given
    assert tasks.next_token(last, now=now) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.ATTEMPTS_AFTER_RETRY)
def test_a_free_retry_does_not_use_an_attempt_up(given: Any, expected: Any) -> None:
    attempts, free_retries, max_attempts, free = given
    assert tasks.attempts_after_retry(attempts, free_retries, max_attempts, free=free) == expected


@pytest.mark.parametrize(("losses", "expected"), rule_cases.IS_SUSPECT)
def test_two_losses_in_a_row_make_a_suspect(losses: int, expected: bool) -> None:
    assert tasks.is_suspect(losses) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.TRIES_AFTER_LOSS)
def test_a_loss_is_charged_to_the_page_that_was_alone(given: Any, expected: Any) -> None:
    attempts, losses, max_attempts, blamed = given
    assert tasks.tries_after_loss(attempts, losses, max_attempts, blamed=blamed) == expected


@pytest.mark.parametrize(("reason", "expected"), rule_cases.LOSSES_OF_REQUEUED)
def test_a_letter_lost_with_its_worker_is_queued_again_as_a_suspect(reason: str, expected: int) -> None:
    assert tasks.losses_of_requeued(reason) == expected


@pytest.mark.parametrize(("cause", "expected"), rule_cases.LOST_REASONS)
def test_the_reason_of_a_loss_names_its_cause(cause: str, expected: str) -> None:
    assert tasks.lost_reason(cause) == expected
    assert tasks.outcome_of(expected) == tasks.WORKER_LOST


@pytest.mark.parametrize(("given", "expected"), rule_cases.LOST_DETAILS)
def test_the_detail_of_a_loss_says_what_is_known_of_the_worker(given: Any, expected: str) -> None:
    worker, has_exited = given
    assert tasks.lost_detail(worker, has_exited=has_exited) == expected


@pytest.mark.parametrize(("reason", "expected"), rule_cases.OUTCOMES)
def test_a_reason_is_counted_by_the_part_before_its_colon(reason: str, expected: str) -> None:
    assert tasks.outcome_of(reason) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.HAS_SPENT)
def test_a_crawl_has_spent_its_budget_when_the_cost_reaches_it(given: Any, expected: bool) -> None:
    assert tasks.has_spent(*given) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.GENERATIONS_DUE)
def test_a_generation_lasts_half_a_ttl(given: Any, expected: Any) -> None:
    began, ttl = given
    due = keys.generations_due(began, ttl, now=NOW)
    assert (due, keys.generation_begin(began, ttl, due)) == expected


@pytest.mark.parametrize(("generation", "expected"), rule_cases.OLDEST_KNOWN)
def test_keys_are_known_through_their_generation_and_the_next_two(generation: int, expected: int) -> None:
    assert keys.oldest_known(generation) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.SHARES)
def test_lanes_share_a_call_equally(given: Any, expected: Any) -> None:
    rooms, limit = given
    assert tuple(lanes.share_out(rooms, limit)) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.RECKON)
def test_the_time_of_a_crawl_goes_on_steadily(given: Any, expected: tuple[float, float]) -> None:
    clock, last, shift, reckoned, way, known_shift = given
    known = None if reckoned is None else Expected(reckoned, way, known_shift)
    assert reckon(clock, last=last, shift=shift, expected=known) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.IS_NOTED)
def test_a_crawls_time_is_noted_about_once_a_second(given: Any, expected: bool) -> None:
    assert is_noted(given[0], last=given[1]) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.WAS_AWAY)
def test_a_frontier_was_away_when_nobody_asked_for_half_a_lease(given: Any, expected: bool) -> None:
    now, last, reckoned, seconds = given
    known = None if reckoned is None else Expected(reckoned, 0.0, 0.0)
    assert was_away(now, last=last, expected=known, seconds=seconds) == expected


@pytest.mark.parametrize(("given", "seconds"), rule_cases.RAN_SINCE)
def test_a_crawl_ran_while_workers_asked_without_a_long_break(given: Any, seconds: float) -> None:
    assert ran_since(given[0], last=given[1]) == seconds


@pytest.mark.parametrize(("given", "expected"), rule_cases.POSSIBLE_START)
def test_the_start_of_a_lane_can_lie_as_far_ahead_as_its_pace_and_rest_say(given: Any, expected: float) -> None:
    assert possible_start(Pace(*given[0]), in_flight=given[1], now=NOW) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.BRING_BACK)
def test_a_start_that_cannot_be_is_brought_back(given: Any, expected: Any) -> None:
    assert bring_back(Pace(*given[0]), in_flight=given[1], now=NOW) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.FIRST_SHARING)
def test_a_new_lane_is_alone_unless_its_crawl_shares_nothing(given: Any, expected: int) -> None:
    assert hosts.first_sharing(given[0], is_apart=given[1]) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.IN_TIME_OF)
def test_times_of_another_crawl_are_shifted_by_the_difference_of_the_clocks(given: Any, expected: float) -> None:
    at, shift, own_shift = given
    assert hosts.in_time_of(at, shift=shift, own_shift=own_shift) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.LIMITS_OF)
def test_the_strictest_limits_of_all_crawls_hold(given: Any, expected: Any) -> None:
    interval, base_interval, cap, others, *own_start = given
    lanes_of_others, own = [OtherLane(*other) for other in others], {"own_start": own_start[0]} if own_start else {}
    assert hosts.limits_of(interval, base_interval, cap, lanes_of_others, now=NOW, **own) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.LANE_IN_STATE)
def test_a_crawl_that_has_ended_limits_others_only_by_what_it_has_in_flight(given: Any, expected: Any) -> None:
    assert hosts.lane_in_state(OtherLane(*given[0]), given[1]) == OtherLane(*expected)


@pytest.mark.parametrize(("given", "expected"), rule_cases.MATTERS)
def test_a_lane_looks_at_those_that_do_something(given: Any, expected: bool) -> None:
    assert hosts.matters(OtherLane(*given[0]), given[1], now=NOW) is expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.TURN_AT_RETURN)
def test_a_lane_that_wanted_nothing_has_saved_no_turns_up(given: Any, expected: float) -> None:
    turn, wants_until, first_turn = given
    assert hosts.turn_at_return(turn, wants_until=wants_until, first_turn=first_turn, now=NOW) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.TURN_OWED)
def test_what_a_crawl_has_started_alone_is_no_debt(given: Any, expected: float) -> None:
    turn, weight, (interval, cap, least_turn), horizon = given
    limits = Limits(interval, interval, cap, 0, 0.0, False, least_turn, least_turn)
    assert hosts.turn_owed(turn, weight=weight, limits=limits, horizon=horizon) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.TURNS_LEFT)
def test_crawls_take_turns_by_weight(given: Any, expected: int) -> None:
    turn, weight, (interval, cap, least_turn), horizon, most = given
    limits = Limits(interval, interval, cap, 0, 0.0, False, least_turn, least_turn)
    assert hosts.turns_left(turn, weight=weight, limits=limits, horizon=horizon, most=most) == expected


@pytest.mark.parametrize(("given", "expected"), rule_cases.WANTS)
def test_a_lane_that_got_all_it_asked_for_wants_nothing(given: Any, expected: Any) -> None:
    waiting, due, is_served = given
    assert hosts.wants(waiting, due, is_served=is_served, now=NOW) == expected
