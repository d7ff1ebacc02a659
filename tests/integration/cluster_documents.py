"""What documents for a cluster promise to each other and to shoal: selectors, ports, secrets, commands, sandboxes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from cluster_schemas import check_document
from deployed_files import METRIC, check_words, inner, unknown_variables

from shoal.deploy.writing import PASSWORDS, READER_TOKEN
from shoal.serve.metrics import Collector

Document = dict[str, Any]
SERVERS = ("redis", "postgres")


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
    """The words after `shoal` as its process gets them: Kubernetes makes one dollar of two."""
    return [word.replace("$$", "$") for word in container(pod)["args"]]


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
    labelled = [pod["metadata"]["labels"] for pod in templates]
    for one in found:
        _check_selected(one, labelled)


def _check_sandbox(pod: Document) -> None:
    spec, inside = pod["spec"], container(pod)["securityContext"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert inside["readOnlyRootFilesystem"] is True
    assert inside["allowPrivilegeEscalation"] is False
    assert inside["capabilities"] == {"drop": ["ALL"]}
    # Chromium's own sandbox needs what the profile of others refuses.
    has_browser = any(one["name"] == "shm" for one in spec["volumes"]) and "args" in container(pod)
    assert spec["securityContext"]["seccompProfile"]["type"] == ("Unconfined" if has_browser else "RuntimeDefault")


def _check_container(pod: Document) -> None:
    spec, inside = pod["spec"], container(pod)
    if "args" in inside:
        check_words(words_of(pod))
        assert not unknown_variables(str(inside["env"]))
    mounted = {one["name"]: one["mountPath"] for one in inside["volumeMounts"]}
    claimed = (
        {one["name"] for one in spec["volumes"]} | {"data"} if "command" in inside or "args" not in inside else set()
    )
    assert set(mounted) == {one["name"] for one in spec["volumes"]} | (claimed & {"data"} & set(mounted))
    for volume in spec["volumes"]:
        if "secret" in volume:
            keys = {item["key"] for item in volume["secret"]["items"]}
            assert keys <= {*PASSWORDS, READER_TOKEN}
            named = {str(one.get("value")) for one in inside.get("env", [])}
            given = {f"{mounted['secrets']}/{item['path']}" for item in volume["secret"]["items"]}
            assert {one for one in named if one.startswith("/run/secrets")} <= given
    names = {port["name"] for port in inside.get("ports", [])}
    assert {probe["port"] for probe in inner(inside, "httpGet")} <= names


def _check_selected(one: Document, labelled: list[Document]) -> None:
    """What selects pods finds some, where it is meant for some of these."""
    kind, spec = one["kind"], one["spec"]
    if kind in ("Deployment", "StatefulSet", "PodDisruptionBudget", "PodMonitor", "ServiceMonitor"):
        wanted = spec["selector"]["matchLabels"]
    elif kind == "Service":
        wanted = spec["selector"]
    elif kind == "NetworkPolicy":
        wanted = spec["podSelector"]["matchLabels"]
    else:
        return
    assert any(wanted.items() <= labels.items() for labels in labelled), (kind, one["metadata"]["name"])


def check_metrics(text: str) -> None:
    """Fail on a metric that shoal does not tell, or a label that the metric does not have."""
    known = {family.name for family in Collector([], advice={}, reached=True).collect()}
    named = set(METRIC.findall(text))
    bare = {name.removesuffix("_total").removesuffix("_sum").removesuffix("_count") for name in named}
    assert named
    assert bare <= known, bare - known
