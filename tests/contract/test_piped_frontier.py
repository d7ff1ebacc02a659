"""The frontier behind a pipe keeps the contract of the one that the coordinator has.

Here the coordinator passes every verb on; what a worker may say is in `WORKER_VERBS`, and the rest is refused."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from shoal.frontier.base import Frontier
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.pipes import open_pipe
from shoal.pipes.frontier import ALL_VERBS, PipedFrontier
from shoal.pipes.messages import REQUESTS
from shoal.pipes.pump import Pump
from shoal.testing.contract.frontier.case import FrontierCase
from shoal.testing.contract.frontier.kind_promises import KindPromises
from shoal.testing.contract.frontier.lease_promises import LeasePromises
from shoal.testing.contract.frontier.settle_promises import SettlePromises
from shoal.testing.contract.frontier.stage_promises import StagePromises
from shoal.testing.contract.frontier.visit_promises import VisitPromises
from shoal.testing.frontier_contract import FrontierContract
from shoal.testing.servers.object_server import MotoServer
from shoal.testing.servers.rabbitmq_server import RabbitServer

Steady = Callable[[], float] | None


# For each verb a promise that calls it: these are in `make test`.
BY_VERB: Mapping[str, str] = {
    "beat": "test_a_sign_of_life_carries_figures",
    "bury": "test_a_buried_task_is_a_dead_letter_that_no_worker_saw",
    "count_dead": "test_counts_the_dead_letters_of_a_filter_among_the_newest",
    "crawls": "test_the_scope_of_a_crawl_stays_and_its_weight_can_change",
    "dead": "test_dead_letters_are_listed_by_lane_reason_time_and_key",
    "delete_crawl": "test_a_crawl_is_deleted_in_steps_and_from_the_first_one_on_nobody_sees_it",
    "drop_dead": "test_dropped_dead_letters_stay_known",
    "drop_keys": "test_keys_are_dropped_in_steps_and_another_process_goes_on",
    "evict": "test_an_evicted_workers_tasks_are_lent_again_at_once",
    "exits": "test_an_exit_stays_in_use_until_its_lease_is_settled",
    "extend": "test_an_extended_lease_lasts_longer",
    "forget": "test_a_forgotten_key_can_be_put_again",
    "half_deleted": "test_a_crawl_that_was_half_deleted_is_begun_anew_without_the_rest",
    "hold_duty": "test_what_the_holder_of_a_duty_notes_goes_to_the_next_one",
    "keep_point": "test_a_point_is_read_as_it_was_kept_with_the_time_of_the_frontier",
    "keep_session": "test_keeps_a_session_that_no_lease_reports",
    "know": "test_keys_made_known_twice_are_new_once",
    "know_from": "test_a_crawl_knows_what_an_earlier_one_has_done_and_nothing_else",
    "lanes": "test_pages_through_busy_lanes_and_finds_them_by_name",
    "lease": "test_lends_only_tasks_of_the_kinds_that_a_worker_asks_for",
    "look_up": "test_looks_up_the_state_of_one_key",
    "open_crawl": "test_a_crawl_opened_again_takes_over_its_new_settings",
    "points": "test_crawls_have_each_their_own_history_which_goes_with_them",
    "progress": "test_counts_outcomes_rejections_and_samples",
    "put": "test_accepted_tasks_outlive_the_process",
    "requeue_dead": "test_requeued_dead_letters_have_all_their_attempts_again",
    "reserve": "test_a_reserved_start_counts_in_the_pace",
    "rules": "test_a_lane_without_rules_lends_one_lease_that_opens_it",
    "samples": "test_counts_merged_and_rejected_urls_with_samples",
    "session": "test_keeps_the_session_of_an_exit",
    "set_feeding": "test_a_silent_feeder_lets_the_crawl_end_and_counts_as_lost",
    "set_state": "test_a_crawl_tells_why_it_was_paused_until_it_runs_again",
    "settle": "test_one_bad_result_does_not_stop_the_others",
    "size": "test_the_size_of_a_crawl_grows_with_its_tasks_and_shrinks_when_its_keys_are_dropped",
    "tasks_of": "test_finds_every_task_of_a_url_that_is_not_done",
    "update_lane": "test_a_change_of_pace_holds_from_the_next_lease_on",
    "workers": "test_knows_the_workers_that_are_alive",
    "workers_of": "test_a_crawl_keeps_the_last_signs_of_workers_that_left_or_were_lost",
}


class PipedCase(FrontierCase):
    """Each view has a coordinator of its own, as each process of the other suites has a connection of its own."""

    _path = Path()

    @pytest.fixture(autouse=True)
    async def at_a_broker(self, pipe_url: Callable[[str], str]) -> AsyncIterator[None]:
        self._url = pipe_url
        self._ends = contextlib.AsyncExitStack()
        yield
        await self._ends.aclose()

    async def open(self, folder: Path, clock: Callable[[], float], steady: Steady = None) -> Frontier:
        self._path = folder / "shoal.db"
        behind = await SqliteFrontier.open(self._path, clock=clock, steady=steady)
        url = self._url(f"t{uuid.uuid4().hex[:12]}")
        pump = asyncio.create_task(Pump(behind, open_pipe(url), say=print, allows=ALL_VERBS).run())

        async def end() -> None:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
            await behind.close()
            pipe = open_pipe(url)
            await pipe.remove_queue(REQUESTS)
            await pipe.close()

        self._ends.push_async_callback(end)
        return await PipedFrontier.open(open_pipe(url), steady=None)


@pytest.mark.parametrize("verb", sorted(ALL_VERBS))
def test_a_promise_through_a_pipe_calls_each_verb(verb: str) -> None:
    assert f".{verb}(" in inspect.getsource(getattr(FrontierContract, BY_VERB[verb]))


class TestPipedFrontier(PipedCase, FrontierContract):
    in_make_test = frozenset(BY_VERB.values())

    @pytest.fixture
    def pipe_url(self, rabbitmq: RabbitServer) -> Callable[[str], str]:
        return rabbitmq.at

    async def damage(self, frontier: Frontier, crawl: str, key: int) -> None:
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as db:
            assert db.execute("UPDATE task SET payload = x'ff00ff' WHERE key = ?", (key,)).rowcount == 1

    async def write_unreadable_point(self, frontier: Frontier, crawl: str) -> None:
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as db:
            damaged = "UPDATE point SET point = '{\"at\": 1}' WHERE at = (SELECT max(at) FROM point)"
            assert db.execute(damaged).rowcount == 2


# Not the whole suite: a test takes half a second through moto's server. These promises show that answers find those who
# asked, that leases, kinds and stages come through, and that results keep what they are. Left out are rules of the
# frontier alone (order of lanes, caps, rests, exits, suspects, stepped clocks), verbs that no worker may call, and the
# promises of `put`: every settle sends found tasks.
class TestPipedFrontierOverSqs(PipedCase, SettlePromises, KindPromises, StagePromises, VisitPromises):
    in_make_test = frozenset(
        {"test_two_workers_asking_at_once", "test_an_extended_lease_lasts_longer", BY_VERB["settle"]}
    )

    test_two_workers_asking_at_once = LeasePromises.test_two_workers_asking_at_once_never_get_the_same_task
    test_says_from_which_moment = LeasePromises.test_says_from_which_moment_of_this_process_the_waits_count
    test_lends_ahead_within_the_horizon = LeasePromises.test_lends_ahead_within_the_horizon_and_never_beyond
    test_lends_an_expired_lease_again = LeasePromises.test_lends_an_expired_lease_again_with_a_new_token
    test_an_extended_lease_lasts_longer = LeasePromises.test_an_extended_lease_lasts_longer
    test_an_evicted_workers_tasks_are_lent_again = LeasePromises.test_an_evicted_workers_tasks_are_lent_again_at_once
    test_a_reserved_start_counts_in_the_pace = LeasePromises.test_a_reserved_start_counts_in_the_pace
    test_a_lane_without_rules_is_opened = LeasePromises.test_a_lane_without_rules_lends_one_lease_that_opens_it

    @pytest.fixture
    def pipe_url(self, moto: MotoServer) -> Callable[[str], str]:
        return moto.queues_url
