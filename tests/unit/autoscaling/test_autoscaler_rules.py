"""The rules of the HPA and of KEDA that the simulation uses, by worked examples of their own."""

from __future__ import annotations

import pytest
from autoscaler_rules import (
    Behaviour,
    HpaMemory,
    HpaRule,
    KedaRule,
    Policy,
    chart_numbers,
    hpa,
    hpa_of_chart,
    keda,
    keda_of_chart,
    wanted_by_metric,
)

FREE = HpaRule(least=1, most=100, up=Behaviour(()), down=Behaviour(()))


@pytest.mark.parametrize(
    ("metric", "replicas", "wanted"),
    [(2.0, 1, 2), (2.2, 1, 3), (10.9, 10, 10), (9.1, 10, 10), (11.1, 10, 12), (8.9, 10, 9), (0.0, 3, 0)],
)
def test_within_a_tenth_nothing_changes_else_the_metric_is_rounded_up(
    metric: float, replicas: int, wanted: int
) -> None:
    assert wanted_by_metric(metric, replicas) == wanted


def syncs(rule: HpaRule, metrics: list[float | None], *, replicas: int) -> list[int]:
    """The replicas after each sync, 15 s apart."""
    memory, found = HpaMemory(), []
    for number, metric in enumerate(metrics):
        replicas, memory = hpa(rule, memory, now=15.0 * number, replicas=replicas, metric=metric)
        found.append(replicas)
    return found


def test_without_policies_and_windows_it_goes_there_at_once() -> None:
    assert syncs(FREE, [7.0, 2.0, 50.0], replicas=1) == [7, 2, 50]


def test_between_the_least_and_the_most() -> None:
    rule = FREE._replace(least=2, most=5)
    assert syncs(rule, [0.0, 40.0], replicas=3) == [2, 5]


def test_four_pods_per_minute_are_four_within_any_minute() -> None:
    rule = FREE._replace(up=Behaviour((Policy("Pods", 4, 60.0),)))
    assert syncs(rule, [20.0] * 9, replicas=1) == [5, 5, 5, 5, 9, 9, 9, 9, 13]


def test_half_of_the_pods_per_minute_is_half_of_those_at_its_beginning() -> None:
    rule = FREE._replace(down=Behaviour((Policy("Percent", 50, 60.0),)))
    assert syncs(rule, [1.0] * 9, replicas=20) == [10, 10, 10, 10, 5, 5, 5, 5, 2]


def test_per_cent_of_growth_are_rounded_up() -> None:
    rule = FREE._replace(up=Behaviour((Policy("Percent", 50, 60.0),)))
    assert syncs(rule, [9.0], replicas=3) == [5]


def test_of_two_policies_the_one_that_allows_more_counts() -> None:
    both = (Policy("Percent", 100, 60.0), Policy("Pods", 4, 60.0))
    assert syncs(FREE._replace(up=Behaviour(both)), [100.0], replicas=2) == [6]
    assert syncs(FREE._replace(up=Behaviour(both)), [100.0], replicas=8) == [16]


def test_it_goes_down_no_further_than_the_highest_recommendation_of_the_window() -> None:
    rule = FREE._replace(down=Behaviour((), window=60.0))
    assert syncs(rule, [10.0, 4.0, 6.0, 4.0, 4.0, 4.0, 4.0], replicas=10) == [10, 10, 10, 10, 6, 6, 4]


def test_it_goes_up_no_further_than_the_lowest_recommendation_of_the_window() -> None:
    rule = FREE._replace(up=Behaviour((), window=30.0))
    assert syncs(rule, [2.0, 8.0, 6.0, 6.0], replicas=2) == [2, 2, 6, 6]


def test_without_a_metric_nothing_changes_and_at_zero_it_is_switched_off() -> None:
    assert syncs(FREE, [None, None], replicas=3) == [3, 3]
    assert syncs(FREE, [5.0], replicas=0) == [0]


def polls(metrics: list[float | None], *, replicas: int, cooldown: float = 60.0) -> list[int]:
    """The replicas after each poll, 15 s apart."""
    rule, active, found = KedaRule(poll=15.0, cooldown=cooldown, hpa=FREE), 0.0, []
    for number, metric in enumerate(metrics):
        replicas, active = keda(rule, now=15.0 * number, replicas=replicas, metric=metric, active=active)
        found.append(replicas)
    return found


def test_any_metric_above_zero_wakes_it_with_one() -> None:
    assert polls([0.0, 5.0, 5.0], replicas=0) == [0, 1, 1]


def test_it_goes_to_zero_when_the_cooldown_is_over() -> None:
    assert polls([3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], replicas=3) == [3, 3, 3, 3, 3, 0, 0]


def test_activity_begins_the_cooldown_anew() -> None:
    assert polls([3.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], replicas=3)[-2:] == [3, 0]


def test_a_scaler_without_an_answer_changes_nothing() -> None:
    assert polls([3.0, None, None, None, None, None, None, None], replicas=3)[-1] == 3
    assert polls([None], replicas=0) == [0]


def test_the_numbers_of_the_chart_make_rules() -> None:
    numbers = chart_numbers()
    assert {"minReplicas", "maxReplicas", "pollSeconds", "cooldownSeconds", "scaleUp", "scaleDown"} <= numbers.keys()
    assert 1 <= hpa_of_chart(numbers).least <= hpa_of_chart(numbers).most
    assert keda_of_chart(numbers).hpa.least == 1
    assert keda_of_chart(numbers).cooldown >= keda_of_chart(numbers).poll
