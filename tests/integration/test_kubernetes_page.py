"""The page on Kubernetes is true: commands name what `shoal deploy k8s` writes, and values are those of the chart."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from cluster_documents import check_metrics
from command_line import Folder
from deployed_files import check_words, documents

from checks.chart.rendering import CHART
from checks.finding import ROOT
from shoal.cli.main import COMMANDS

pytestmark = pytest.mark.full

PAGE = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands(program: str) -> list[list[str]]:
    """The words of each command of this program, in blocks and in the text."""
    lines = [line for language, text in BLOCKS if language in ("sh", "text") for line in text.splitlines()]
    lines += [line for line in re.findall(r"`([^`\n]+)`", PAGE) if line.startswith(f"{program} ")]
    found = [part for line in lines for part in line.split(" && ") if part.startswith(f"{program} ")]
    return [shlex.split(line, comments=True)[1:] for line in found]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first command of the page writes."""
    folder = Folder(tmp_path_factory.mktemp("page"))
    (folder.path / "books.py").write_text(folder_spider())
    folder.run(*next(words for words in commands("shoal") if words[:2] == ["deploy", "k8s"]))
    return folder.path / "books-fleet"


def folder_spider() -> str:
    return (ROOT / "examples" / "books.py").read_text()


def assigned(words: list[str]) -> Iterator[dict[str, Any]]:
    """The values that --set gives."""
    for flag, text in itertools.pairwise(words):
        if flag == "--set":
            name, _, value = text.partition("=")
            inner: Any = yaml.safe_load(value)
            for part in reversed(name.split(".")):
                inner = {part: inner}
            yield inner


def over(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    merged = dict(first)
    for name, value in second.items():
        merged[name] = over(merged[name], value) if isinstance(value, dict) and name in merged else value
    return merged


def test_its_commands_of_shoal_are_right() -> None:
    found = commands("shoal")
    assert {words[0] for words in found} <= set(COMMANDS)
    (deploy,) = [words for words in found if words[0] == "deploy"]
    check_words(deploy)


def test_its_commands_name_what_the_first_one_writes(fleet: Path) -> None:
    values = yaml.safe_load((fleet / "values.yaml").read_text())
    names = {
        (one["kind"].lower(), one["metadata"]["name"])
        for path in fleet.glob("manifests/*.yaml")
        for one in documents(path.read_text())
    }
    secret = next(words for words in commands("kubectl") if words[:2] == ["create", "secret"])
    assert secret[3] == values["secret"]
    assert (fleet / secret[4].partition("=")[2]).is_dir()
    apply = next(words for words in commands("kubectl") if words[0] == "apply")
    assert list((fleet / apply[-1]).glob("*.yaml"))
    scale = next(words for words in commands("kubectl") if words[0] == "scale")
    assert tuple(scale[1:3]) in names
    kind, _, name = next(words for words in commands("kubectl") if words[0] == "port-forward")[1].partition("/")
    assert (kind, name) in names
    build = next(words for words in commands("docker") if "--target" not in words)
    assert values["image"] == build[build.index("--tag") + 1]
    browser = next(words for words in commands("docker") if "--target" in words)
    assert values["browserImage"] == browser[browser.index("--tag") + 1]
    for path in re.findall(r"`((?:manifests|helm)/[\w/.-]+)`", PAGE):
        assert (fleet / path).exists(), path


def test_the_values_that_it_sets_are_those_of_the_chart(fleet: Path) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    whole = over(
        yaml.safe_load((CHART / "values.yaml").read_text()), yaml.safe_load((fleet / "values.yaml").read_text())
    )
    helm = [words for words in commands("helm") if "--values" in words]
    assert len(helm) >= 3
    for words in helm:
        assert (fleet / words[words.index("--values") + 1]).is_file()
        assert (fleet / next(word for word in words if word.startswith("helm/")) / "Chart.yaml").is_file()
    flags = [shlex.split(text) for text in re.findall(r"`(--set [^`\n]+)`", PAGE)]
    given = [one for words in [*helm, *flags] for one in assigned(words) if "grace_seconds" not in one]
    assert len(given) >= 6
    for one in given:
        jsonschema.validate(over(whole, one), schema)


def test_the_rule_for_the_adapter_asks_for_a_metric_of_shoal() -> None:
    (text,) = [text for language, text in BLOCKS if language == "yaml"]
    (rule,) = yaml.safe_load(text)["rules"]["external"]
    assert set(rule) == {"seriesQuery", "resources", "metricsQuery"}
    check_metrics(rule["seriesQuery"])
