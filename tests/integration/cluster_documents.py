"""What documents for a cluster promise to each other and to shoal: selectors, ports, secrets, commands, sandboxes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from cluster_schemas import check_document
from deployed_files import METRIC, check_words, inner, unknown_variables

from shoal.deploy.writing import PASSWORDS, READER_TOKEN
from shoal.serve.metrics import Collector

Document = dict[str, Any]
MATCHED = re.compile(r"\b(shoal_[a-z_]+)\{([^}]*)\}")
LABEL = re.compile(r"\b(\w+)(?:=~?|!=)\\?[\"']")
EXPANDED = re.compile(r"\$(\$)|\$\(\w+\)")
BARE = re.compile("_(total|sum|count)$")
# By Prometheus' operator, and by the chart's own monitor.
ADDED_LABELS = {"namespace", "spider"}


def of_kind(found: Iterable[Document], kind: str) -> dict[str, Document]:
    """The documents of a kind, by their names."""
    return {one["metadata"]["name"]: one for one in found if one["kind"] == kind}


def pods(found: Iterable[Document]) -> Iterator[tuple[Document, Document]]:
    """Each document that makes pods, and the template of these."""
    for one in found:
        spec = one["spec"]["jobTemplate"]["spec"] if one["kind"] == "CronJob" else one["spec"]
        if "template" in spec:
            yield one, spec["template"]


def container(pod: Document) -> Document:
    (found,) = pod["spec"]["containers"]
    return dict(found)


def words_of(pod: Document) -> list[str]:
    """The words after `shoal` as its process gets them: Kubernetes makes one dollar of two, and replaces $(NAME)."""
    return [EXPANDED.sub(lambda found: found[1] or "a variable", word) for word in container(pod)["args"]]


def check_documents(found: list[Document]) -> None:
    """Fail on what a cluster would refuse, or what would not find what it names there."""
    names = [(one["kind"], one["metadata"]["name"]) for one in found]
    assert len(names) == len(set(names))
    for one in found:
        check_document(one)
    templates = [pod for _, pod in pods(found)]
    for pod in templates:
        _check_sandbox(pod)
        _check_container(pod)
    services = list(of_kind(found, "Service").values())
    for one in found:
        _check_selected(one, templates, services)


def _check_sandbox(pod: Document) -> None:
    spec, inside = pod["spec"], container(pod)["securityContext"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert inside["readOnlyRootFilesystem"] is True
    assert inside["allowPrivilegeEscalation"] is False
    assert inside["capabilities"] == {"drop": ["ALL"]}
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def _check_container(pod: Document) -> None:
    spec, inside = pod["spec"], container(pod)
    if "args" in inside:
        check_words(words_of(pod))
        assert not unknown_variables(str(inside["env"]))
    mounted = {one["name"]: one["mountPath"] for one in inside["volumeMounts"]}
    # The volume of a server is claimed by its StatefulSet.
    assert set(mounted) - {"data"} == {one["name"] for one in spec["volumes"]}
    for volume in spec["volumes"]:
        if "secret" in volume:
            keys = {item["key"] for item in volume["secret"]["items"]}
            assert keys <= {*PASSWORDS, READER_TOKEN}
            named = {str(one.get("value")) for one in inside.get("env", [])}
            given = {f"{mounted['secrets']}/{item['path']}" for item in volume["secret"]["items"]}
            assert {one for one in named if one.startswith("/run/secrets")} <= given
    names = {port["name"] for port in inside.get("ports", [])}
    assert {probe["port"] for probe in inner(inside, "httpGet")} <= names


def _check_selected(one: Document, labelled: list[Document], services: list[Document]) -> None:
    """What selects pods or services finds one, and the port that it names there."""
    kind, spec = one["kind"], one["spec"]
    if kind in ("Deployment", "StatefulSet", "PodDisruptionBudget", "PodMonitor", "ServiceMonitor"):
        wanted = spec["selector"]["matchLabels"]
    elif kind == "Service":
        wanted = spec["selector"]
    elif kind == "NetworkPolicy":
        wanted = spec["podSelector"]["matchLabels"]
    else:
        return
    among = services if kind == "ServiceMonitor" else labelled
    found = [candidate for candidate in among if wanted.items() <= candidate["metadata"]["labels"].items()]
    assert found, (kind, one["metadata"]["name"])
    for endpoint in spec.get("endpoints", spec.get("podMetricsEndpoints", [])):
        for candidate in found:
            ports = candidate["spec"]["ports"] if kind == "ServiceMonitor" else container(candidate)["ports"]
            assert endpoint["port"] in {port["name"] for port in ports}


def check_metrics(text: str) -> None:
    """Fail on a metric that shoal does not tell, or a label that it does not have and that no monitor adds."""
    known = {family.name: set(family._labelnames) for family in Collector([], advice={}, reached=True).collect()}
    named = set(METRIC.findall(text))
    assert named
    assert {BARE.sub("", name) for name in named} <= set(known)
    for name, labels in MATCHED.findall(text):
        assert set(LABEL.findall(labels)) <= known[BARE.sub("", name)] | ADDED_LABELS, name
