"""A recorded crawl, replayed: what was advised then does not flap, and the end brings zero.

The recording is of a busy machine with two cores; its first line says how it was made."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from autoscaler_rules import HpaMemory, chart_numbers, hpa, hpa_of_chart, keda, keda_of_chart

from shoal.insight.advice import Advice, advise
from shoal.insight.survey import Survey

pytestmark = pytest.mark.full

RECORDING = Path(__file__).with_name("recorded_load.jsonl")


def surveys() -> list[Survey]:
    _, *lines = RECORDING.read_text(encoding="utf-8").splitlines()
    return [msgspec.json.decode(line, type=Survey) for line in lines]


def advised(every: int) -> list[tuple[float, Advice]]:
    """What was advised between each survey and the next, with their times; so many surveys of the recording apart. A
    crawl that has ended is not read again: the last look sees the same survey."""
    found = surveys()[::every]
    return [(now.at, advise(before, now)) for before, now in pairwise([*found, found[-1]])]


def changes(numbers: list[int]) -> int:
    return sum(one != after for one, after in pairwise(numbers))


def test_the_recording_is_of_a_whole_crawl_in_which_a_worker_joins() -> None:
    found = surveys()
    assert RECORDING.stat().st_size < 100_000
    assert {len(one.at_work) for one in found} == {0, 1, 2}
    assert (found[0].progress.done, found[-1].progress.left) == (0, 0)
    assert found[-1].progress.done > 1_000


@pytest.mark.parametrize("every", [1, 2, 3, 6])
def test_the_wanted_number_of_a_recorded_crawl_does_not_flap(every: int) -> None:
    """One worker needs a little more than its core, and two are enough: also while the measured need of two goes up and
    down between 1.6 and 2.2. Then the crawl ends."""
    found = advised(every)
    numbers = [advice.workers_wanted for _, advice in found]
    both = [advice.workers_wanted for _, advice in found if advice.workers == 2 and advice.rate > 1]
    assert both == [2] * len(both)
    assert max(numbers) <= 3
    assert numbers == sorted(numbers, reverse=True)
    assert changes(numbers) <= 3
    assert numbers[-1] == 0


def test_the_need_that_was_measured_did_go_up_and_down() -> None:
    """Else nothing would have been shown: rounded up, it would have been 2 and 3 in turn."""
    needs = [one.needed for _, advice in advised(1) if advice.workers == 2 for one in advice.kinds]
    assert min(needs) < 2 < 2.05 < max(needs)
    assert changes([need > 2.05 for need in needs]) >= 3


def test_autoscalers_over_the_recording_go_up_once_and_to_zero_once() -> None:
    numbers = chart_numbers()
    rule, memory, replicas, active, seen = keda_of_chart(numbers), HpaMemory(), 1, 0.0, list[int]()
    wanted = [(at, float(advice.workers_wanted)) for at, advice in advised(3)]
    # Nobody looks at a crawl that has ended more closely than at its last number.
    ends = wanted[-1][0]
    later = [(ends + 15.0 * number, wanted[-1][1]) for number in range(1, 60)]
    for at, metric in (*wanted, *later):
        inner, memory = hpa(rule.hpa, memory, now=at, replicas=replicas, metric=metric)
        replicas, active = keda(rule, now=at, replicas=inner, metric=metric, active=active)
        seen.append(replicas)
    assert max(seen) == 2
    assert seen[-1] == 0
    assert changes(seen) <= 3


def test_the_hpa_of_the_chart_keeps_at_least_its_least() -> None:
    rule, memory, replicas = hpa_of_chart(chart_numbers()), HpaMemory(), 2
    for number in range(60):
        replicas, memory = hpa(rule, memory, now=15.0 * number, replicas=replicas, metric=0.0)
    assert replicas == chart_numbers()["minReplicas"]
