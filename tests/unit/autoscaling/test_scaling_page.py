"""docs/how-to/autoscaling.md: its table is what the simulation gives, its manifests have the numbers of the chart."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from autoscaler_rules import chart_numbers
from scaling_table import FROM, table

pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[3] / "docs/how-to/autoscaling.md"


def manifests() -> list[dict[str, Any]]:
    text = PAGE.read_text(encoding="utf-8")
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]


async def test_the_table_is_what_the_simulation_gives() -> None:
    text = PAGE.read_text(encoding="utf-8")
    written = FROM + text.partition(FROM)[2].partition("\n\n")[0] + "\n"
    assert written == await table(), "write the table anew: it is what scaling_table.table() gives"


def test_the_manifests_have_the_numbers_of_the_chart() -> None:
    numbers, (keda, hpa) = chart_numbers(), manifests()
    scaled = keda["spec"]
    assert scaled["maxReplicaCount"] == numbers["maxReplicas"]
    assert (scaled["pollingInterval"], scaled["cooldownPeriod"]) == (numbers["pollSeconds"], numbers["cooldownSeconds"])
    assert scaled["triggers"][0]["metadata"]["ignoreNullValues"] == "false"
    up, down = hpa["behavior"]["scaleUp"], hpa["behavior"]["scaleDown"]
    assert up["policies"] == [{"type": "Pods", "value": numbers["scaleUp"]["pods"], "periodSeconds": 60}]
    assert numbers["scaleUp"]["seconds"] == numbers["scaleDown"]["seconds"] == 60
    assert down["policies"] == [{"type": "Percent", "value": numbers["scaleDown"]["percent"], "periodSeconds": 60}]
    assert down["stabilizationWindowSeconds"] == numbers["scaleDown"]["stabilizationSeconds"]


def test_both_scale_on_the_metric_with_one_per_worker() -> None:
    keda, hpa = manifests()
    trigger, external = keda["spec"]["triggers"][0], hpa["metrics"][0]["external"]
    assert "sum(shoal_workers_wanted" in trigger["metadata"]["query"]
    assert external["metric"]["name"] == "shoal_workers_wanted"
    assert (trigger["metricType"], trigger["metadata"]["threshold"]) == ("AverageValue", "1")
    assert external["target"] == {"type": "AverageValue", "averageValue": "1"}
