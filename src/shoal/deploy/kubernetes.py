"""The Helm chart, its values for one spider, and the same as plain manifests for clusters without Helm."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

from shoal.deploy.plan import Plan, WorkerGroup
from shoal.deploy.writing import NewFile, filled, image_files, template, words
from shoal.errors import UsageError

CHART = "helm/shoal"
# Manifests of every fleet, then optional ones; templates/kubernetes has them as rendered by the chart.
MANIFESTS = ("crawl", "network", "postgres", "redis", "serve")
MORE_MANIFESTS = ("daily", "monitoring")
AUTOSCALERS = ("hpa", "keda")
HEADER = "# Made by `shoal deploy k8s`: the chart in helm/shoal, rendered with values.yaml.\n"
_HASH_LENGTH = 8
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)


def kubernetes_files(plan: Plan) -> Iterator[NewFile]:
    """The chart, values.yaml, the manifests, and the files of the image."""
    if _LABEL.fullmatch(plan.spider) is None:
        raise UsageError(
            f"the spider's name {plan.spider!r} cannot be a label of Kubernetes: give it a `name` of letters,"
            " digits, dots, - and _"
        )
    values = _values(plan)
    groups = [values | _group_values(plan, group) for group in plan.groups]
    yield from _chart_files(plan)
    inner = "\n".join(filled(template("kubernetes/values-workers.yaml"), group).rstrip("\n") for group in groups)
    yield NewFile("values.yaml", filled(template("kubernetes/values.yaml"), values | {"workers": inner}))
    for name in MANIFESTS:
        yield _manifest(name, [filled(template(f"kubernetes/{name}.yaml"), _escaped(values))])
    yield _manifest("workers", [_workers(group, of) for group, of in zip(plan.groups, groups, strict=True)])
    for name in MORE_MANIFESTS:
        yield _manifest(f"more/{name}", [filled(template(f"kubernetes/{name}.yaml"), _escaped(values))])
    for name in AUTOSCALERS:
        yield _manifest(f"more/{name}", [_autoscaler(name, plan, group, values) for group in plan.groups])
    yield from image_files(plan)


def _chart_files(plan: Plan) -> Iterator[NewFile]:
    for name, text in sorted(_texts(files("shoal.deploy") / "templates" / CHART)):
        # Only the version is filled in: all else comes from values.
        whole = filled(text, {"version": plan.version}) if name == "Chart.yaml" else text
        yield NewFile(f"{CHART}/{name}", whole)


def _texts(folder: Traversable, *, before: str = "") -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _texts(entry, before=f"{before}{entry.name}/")
        else:
            yield before + entry.name, entry.read_text(encoding="utf-8")


def _values(plan: Plan) -> dict[str, str]:
    """The values of the marks in all files. Words are JSON, so that YAML changes nothing in them."""
    image = plan.image
    return {
        "name": plan.name,
        "spider": plan.spider,
        "secret": f"{plan.name}-secrets",
        "image": _listed([image]),
        "browser_image": _listed([f"{image}-browser"]),
        "stop_seconds": str(plan.stop_seconds),
        "run": _listed(plan.run),
        "suffix": _hash([*plan.run, image]),
    }


def _group_values(plan: Plan, group: WorkerGroup) -> dict[str, str]:
    return {
        "group": group.name,
        "kinds": _listed(plan.kinds_of(group)),
        "worker": _listed(plan.worker_words(group)),
        "replicas": str(group.workers),
        "browser": "true" if group.needs_browser else "false",
        "requested": "1Gi" if group.needs_browser else "256Mi",
        "memory": f"{group.memory.upper()}i".replace("MI", "Mi"),
    }


def _workers(group: WorkerGroup, values: Mapping[str, str]) -> str:
    name = "workers-browser" if group.needs_browser else "workers"
    return filled(template(f"kubernetes/{name}.yaml"), _escaped(values))


def _autoscaler(name: str, plan: Plan, group: WorkerGroup, values: Mapping[str, str]) -> str:
    kinds = plan.kinds_of(group)
    # KEDA queries with an expression, an HPA with a list.
    shown = _listed(["|".join(kinds)]) if name == "keda" else _listed(kinds)
    return filled(template(f"kubernetes/{name}.yaml"), {**values, "group": group.name, "kinds": shown})


def _manifest(name: str, texts: Iterable[str]) -> NewFile:
    return NewFile(f"manifests/{name}.yaml", HEADER + "".join(texts))


def _listed(given: Iterable[str]) -> str:
    """Words as JSON, without the brackets around them."""
    return words(given)[1:-1]


def _escaped(values: Mapping[str, str]) -> dict[str, str]:
    """The words of commands for Kubernetes: $(NAME) is a variable there, and $$ a dollar."""
    return {name: text.replace("$", "$$") if name in ("run", "worker") else text for name, text in values.items()}


def _hash(given: Iterable[str]) -> str:
    """As the chart computes it: a Job that runs something else has another name."""
    return hashlib.sha256("\n".join(given).encode()).hexdigest()[:_HASH_LENGTH]
