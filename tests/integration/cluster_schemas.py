"""What a cluster takes: the schemas of Kubernetes, and of the fields that the chart uses of what is added to a cluster.

No package has strict schemas of KEDA and of Prometheus' operator, so these fields are written here: a name that is
misspelt is refused, and so is a value of another type."""

from __future__ import annotations

import functools
import json
from typing import Any

import jsonschema
import kubernetes_validate

# The oldest one that the chart names, and the newest one of which there are schemas.
VERSIONS = ("1.27", "1.37")


def only(required: str = "", **properties: Any) -> dict[str, Any]:
    """An object with these properties and no others."""
    needed = required.split()
    return {"type": "object", "additionalProperties": False, "required": needed, "properties": properties}


def every(value: Any) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": value}


TEXT, FLAG, NUMBER = {"type": "string"}, {"type": "boolean"}, {"type": "integer", "minimum": 0}
TEXTS = {"type": "object", "additionalProperties": TEXT}
SELECTOR = only("matchLabels", matchLabels=TEXTS)
SECONDS = {"type": "string", "pattern": "^[0-9]+(s|m|h)$"}
RELABELING = only(
    "action",
    sourceLabels=every(TEXT),
    regex=TEXT,
    targetLabel=TEXT,
    replacement=TEXT,
    action={"enum": ["replace", "keep", "drop", "labeldrop"]},
)
CREDENTIALS = only("type credentials", type=TEXT, credentials=only("name key", name=TEXT, key=TEXT))
ENDPOINT = only(
    "port path", port=TEXT, path=TEXT, interval=SECONDS, authorization=CREDENTIALS, metricRelabelings=every(RELABELING)
)
POLICIES = every(
    only("type value periodSeconds", type={"enum": ["Pods", "Percent"]}, value=NUMBER, periodSeconds=NUMBER)
)
SCALING = only("policies", stabilizationWindowSeconds=NUMBER, policies=POLICIES)
PROMETHEUS = only(
    "serverAddress query threshold",
    serverAddress=TEXT,
    query=TEXT,
    threshold=TEXT,
    activationThreshold=TEXT,
    ignoreNullValues={"enum": ["true", "false"]},
)
RULE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["alert", "expr"],
    "properties": {"alert": TEXT, "expr": TEXT, "for": SECONDS, "labels": TEXTS, "annotations": TEXTS},
}
ADDED = {
    ("keda.sh/v1alpha1", "ScaledObject"): only(
        "scaleTargetRef triggers",
        scaleTargetRef=only("name", apiVersion=TEXT, kind=TEXT, name=TEXT),
        minReplicaCount=NUMBER,
        maxReplicaCount=NUMBER,
        pollingInterval=NUMBER,
        cooldownPeriod=NUMBER,
        fallback=only(
            "failureThreshold replicas",
            failureThreshold=NUMBER,
            replicas=NUMBER,
            behavior={"enum": ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]},
        ),
        advanced=only(horizontalPodAutoscalerConfig=only(behavior=only(scaleUp=SCALING, scaleDown=SCALING))),
        # A fallback works with this type alone.
        triggers=every(
            only(
                "type metadata", type={"const": "prometheus"}, metricType={"const": "AverageValue"}, metadata=PROMETHEUS
            )
        ),
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): only(
        "selector endpoints", selector=SELECTOR, endpoints=every(ENDPOINT)
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): only(
        "selector podMetricsEndpoints", selector=SELECTOR, podMetricsEndpoints=every(ENDPOINT)
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): only(
        "groups", groups=every(only("name rules", name=TEXT, rules=every(RULE)))
    ),
}


def check_document(document: dict[str, Any]) -> None:
    """Fail on a document that a cluster would refuse, or of which it would not know a field."""
    spec = ADDED.get((document["apiVersion"], document["kind"]))
    if spec is None:
        _check_known(json.dumps(document, sort_keys=True))
        return
    metadata = only("name labels", name=TEXT, labels=TEXTS)
    jsonschema.validate(document, only("metadata spec", apiVersion=TEXT, kind=TEXT, metadata=metadata, spec=spec))


@functools.cache
def _check_known(text: str) -> None:
    """Once for each text: the schemas are read anew each time, and forms of the chart share most documents."""
    for version in VERSIONS:
        kubernetes_validate.validate(json.loads(text), version, strict=True)
