"""What Kubernetes' HPA (autoscaling/v2) and KEDA make of one external metric, as their documentation says it. Pure.

The metric is of the type AverageValue with the target 1: the wanted number of replicas is the metric itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import yaml

TOLERANCE: Final = 0.1
HPA_SECONDS: Final = 15.0
CHART_VALUES: Final = Path(__file__).parents[3] / "src/shoal/deploy/templates/helm/shoal/values.yaml"


class Policy(NamedTuple):
    """So many pods, or per cent of them, may be added or removed within so many seconds."""

    kind: Literal["Pods", "Percent"]
    value: int
    seconds: float


class Behaviour(NamedTuple):
    """One direction of scaling. Of several policies the one that allows most counts."""

    policies: tuple[Policy, ...]
    window: float = 0.0


class HpaRule(NamedTuple):
    """The spec of a HorizontalPodAutoscaler."""

    least: int
    most: int
    up: Behaviour
    down: Behaviour


class HpaMemory(NamedTuple):
    """What the controller remembers: what was recommended, and by how much it scaled, each with its time."""

    recommended: tuple[tuple[float, int], ...] = ()
    scaled: tuple[tuple[float, int], ...] = ()


class KedaRule(NamedTuple):
    """The spec of a ScaledObject with `minReplicaCount` 0."""

    poll: float
    cooldown: float
    hpa: HpaRule


def wanted_by_metric(metric: float, replicas: int) -> int:
    """AverageValue, target 1: within the tolerance nothing changes."""
    if replicas and abs(1 - metric / replicas) <= TOLERANCE:
        return replicas
    return math.ceil(metric)


def hpa(rule: HpaRule, memory: HpaMemory, *, now: float, replicas: int, metric: float | None) -> tuple[int, HpaMemory]:
    """The replicas after one sync. Without a metric, or with none running, nothing is changed."""
    if metric is None or not replicas:
        return replicas, memory
    desired = min(rule.most, max(rule.least, wanted_by_metric(metric, replicas)))
    kept = max(rule.up.window, rule.down.window)
    recommended = (*((at, was) for at, was in memory.recommended if now - at < kept), (now, desired))
    steady = _stabilised(rule, recommended, now=now, replicas=replicas)
    found = _limited(rule, memory.scaled, now=now, replicas=replicas, desired=steady)
    found = min(rule.most, max(rule.least, found))
    longest = max((policy.seconds for policy in (*rule.up.policies, *rule.down.policies)), default=0.0)
    scaled = tuple((at, change) for at, change in memory.scaled if now - at < longest)
    if found != replicas:
        scaled = (*scaled, (now, found - replicas))
    return found, HpaMemory(recommended, scaled)


def _stabilised(rule: HpaRule, recommended: Sequence[tuple[float, int]], *, now: float, replicas: int) -> int:
    """Up no further than the lowest recommendation of the window for up, down no further than the highest of the one
    for down; the newest one is always in its window."""
    newest = recommended[-1][1]
    low = min([newest, *(was for at, was in recommended if now - at < rule.up.window)])
    high = max([newest, *(was for at, was in recommended if now - at < rule.down.window)])
    return min(max(replicas, low), high)


def _limited(rule: HpaRule, scaled: Sequence[tuple[float, int]], *, now: float, replicas: int, desired: int) -> int:
    """As far as the policies of this direction let it go now."""
    if desired > replicas and rule.up.policies:
        limits = []
        for kind, value, seconds in rule.up.policies:
            began = replicas - sum(change for at, change in scaled if change > 0 and now - at < seconds)
            limits.append(began + value if kind == "Pods" else math.ceil(began * (1 + value / 100)))
        return min(desired, max(replicas, *limits))
    if desired < replicas and rule.down.policies:
        limits = []
        for kind, value, seconds in rule.down.policies:
            began = replicas - sum(change for at, change in scaled if change < 0 and now - at < seconds)
            limits.append(began - value if kind == "Pods" else math.floor(began * (1 - value / 100)))
        return max(desired, min(replicas, *limits))
    return desired


def keda(rule: KedaRule, *, now: float, replicas: int, metric: float | None, active: float) -> tuple[int, float]:
    """The replicas after one poll, and when the scaler was active last: 0 becomes 1 at any metric above 0, and any
    number becomes 0 when the metric was 0 for longer than the cooldown. Between, the HPA scales."""
    if metric is None:
        return replicas, active
    if metric > 0:
        return max(1, replicas), now
    return (0 if now - active > rule.cooldown else replicas), active


def chart_numbers(path: Path = CHART_VALUES) -> dict[str, Any]:
    """`autoscaling` of the chart's values."""
    numbers: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["autoscaling"]
    return numbers


def hpa_of_chart(numbers: dict[str, Any]) -> HpaRule:
    """The HPA as the chart sets it up."""
    up, down = numbers["scaleUp"], numbers["scaleDown"]
    return HpaRule(
        least=numbers["minReplicas"],
        most=numbers["maxReplicas"],
        up=Behaviour((Policy("Pods", up["pods"], up["seconds"]),)),
        down=Behaviour((Policy("Percent", down["percent"], down["seconds"]),), window=down["stabilizationSeconds"]),
    )


def keda_of_chart(numbers: dict[str, Any]) -> KedaRule:
    """The ScaledObject as the chart sets it up; its HPA never goes below one."""
    inner = hpa_of_chart(numbers)._replace(least=1)
    return KedaRule(poll=numbers["pollSeconds"], cooldown=numbers["cooldownSeconds"], hpa=inner)
