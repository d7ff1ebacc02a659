"""The plain manifests of the package: the chart, rendered with marks as `@name@`, which `shoal deploy k8s` fills in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from checks.chart.rendering import render
from checks.finding import ROOT

FOLDER = ROOT / "src" / "shoal" / "deploy" / "templates" / "kubernetes"
# Marks that stand for a number, or for words in JSON: their quotes are not wanted.
_PLAIN = "browser_image|image|kinds|memory|replicas|requested|run|stop_seconds|worker"
_QUOTED = re.compile(rf"[\"'](@(?:{_PLAIN})@)[\"']")
_DOCUMENTS = re.compile(r"^---$", re.MULTILINE)
# Helm reads what it renders, and YAML has no word that begins with @: marks are such words meanwhile.
_MARK, _WORD = re.compile(r"@([a-z_]+)@"), re.compile(r"zz-([a-z_]+)-zz")
_DAILY = {"schedule": "0 4 * * *"}
_WATCHED = {"enabled": True, "rules": True}


def manifests() -> Iterator[tuple[str, str]]:
    """The name and the text of each template."""
    whole = _rendered()
    for name in ("crawl", "network", "postgres", "redis", "serve", "workers"):
        yield f"{name}.yaml", whole[f"{name}.yaml"]
    yield "workers-browser.yaml", _rendered(browser=True)["workers.yaml"]
    yield "daily.yaml", _rendered(crawl=_DAILY)["crawl.yaml"]
    yield "monitoring.yaml", _rendered(monitoring=_WATCHED)["monitoring.yaml"]
    for mode in ("hpa", "keda"):
        yield f"{mode}.yaml", _rendered(autoscaling={"mode": mode})["autoscaling.yaml"]


def _rendered(*, browser: bool = False, crawl: Mapping[str, Any] | None = None, **values: Any) -> dict[str, str]:
    worker = {
        "kinds": ["@kinds@"],
        "command": ["@worker@"],
        "replicas": "@replicas@",
        "browser": browser,
        "resources": {"requests": {"memory": "@requested@", "cpu": "250m"}, "limits": {"memory": "@memory@"}},
    }
    marked = {
        "spider": "@spider@",
        "image": "@image@",
        "browserImage": "@browser_image@",
        "secret": "@secret@",
        "stopSeconds": "@stop_seconds@",
        "crawl": {"command": ["@run@"], "suffix": "@suffix@", **(crawl or {})},
        # The chart's own group is not wanted.
        "workers": {"worker": None, "@group@": worker},
        **values,
    }
    # Marks stand for numbers, too: the schema would refuse them.
    words = json.loads(_MARK.sub(r"zz-\1-zz", json.dumps(marked)))
    files = render(words, release="zz-name-zz", are_checked=False)
    return {name: _tidy(_WORD.sub(r"@\1@", text)) for name, text in files.items()}


def _tidy(text: str) -> str:
    """The documents, each after its `---`, without quotes around marks."""
    documents = [part.strip("\n") for part in _DOCUMENTS.split(_QUOTED.sub(r"\1", text)) if part.strip()]
    return "".join(f"---\n{document}\n" for document in documents)
