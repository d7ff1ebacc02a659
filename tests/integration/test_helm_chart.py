"""The Helm chart, rendered as Helm would: a cluster takes it in every form, and slips in its values are refused."""

from __future__ import annotations

import ipaddress
import json
from typing import Any

import pytest
import yaml
from cluster_documents import check_documents, check_metrics, container, of_kind, pods, words_of
from command_line import Folder
from deployed_files import documents

from checks.chart.manifests import FOLDER, manifests
from checks.chart.rendering import ChartError, helm_program, render
from checks.finding import ROOT
from shoal.testing.servers.programs import missing

WORKER = {"kinds": ["http"], "command": ["worker", "books.py"], "replicas": 2, "resources": {}}
BROWSER = WORKER | {"kinds": ["browser"], "command": ["worker", "books.py", "--kinds", "browser"], "browser": True}
OWN_SERVERS = {
    "redis": {"bundled": False, "url": "rediss://queue.internal:6379/0"},
    "postgres": {"bundled": False, "url": "postgresql://shoal@10.0.0.9/shoal"},
}
FORMS: dict[str, dict[str, Any]] = {
    "default": {},
    "hpa": {"autoscaling": {"mode": "hpa", "matchLabels": {"namespace": "books"}}},
    "keda": {"autoscaling": {"mode": "keda", "minReplicas": 0, "matchLabels": {"namespace": "books"}}},
    "servers of one's own": OWN_SERVERS
    | {"network": {"alsoAllowed": [{"cidr": "10.0.0.9/32", "ports": [5432]}, {"namespace": "queues"}]}},
    "daily": {"crawl": {"schedule": "0 4 * * *", "timeZone": "Europe/Berlin"}},
    "watched": {"monitoring": {"enabled": True, "rules": True, "labels": {"release": "prometheus"}}},
    "a browser": {"workers": {"browser": BROWSER}, "autoscaling": {"mode": "keda"}},
    "an ingress": {
        "serve": {
            "ingress": {"enabled": True, "host": "books.example.com", "className": "nginx", "tlsSecret": "books-tls"}
        }
    },
    "spot nodes": {
        "workerScheduling": {
            "nodeSelector": {"cloud.google.com/gke-spot": "true"},
            "tolerations": [
                {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
            ],
            "affinity": {},
        }
    },
    "only workers": {
        "crawl": {"enabled": False},
        "serve": {"enabled": False},
        "monitoring": {"enabled": True},
        "disruption": {"enabled": False},
        "network": {"enabled": False},
    },
}


@pytest.fixture(scope="module", autouse=True)
def helm() -> None:
    if not helm_program():
        missing("helm")


def given(values: dict[str, Any]) -> dict[str, Any]:
    return {"spider": "books", "secret": "books-secrets", **values}


def chart(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The documents of a release."""
    return [one for text in render(given(values)).values() for one in documents(text)]


@pytest.mark.full
@pytest.mark.parametrize("form", FORMS)
def test_a_cluster_takes_the_chart_in_every_form(form: str) -> None:
    found = chart(FORMS[form])
    check_documents(found)
    assert of_kind(found, "Deployment")


@pytest.mark.full
def test_a_schedule_makes_new_crawls_and_never_two_at_once() -> None:
    found = chart(FORMS["daily"])
    assert not of_kind(found, "Job")
    spec = of_kind(found, "CronJob")["books-crawl"]["spec"]
    assert (spec["schedule"], spec["timeZone"], spec["concurrencyPolicy"]) == ("0 4 * * *", "Europe/Berlin", "Forbid")
    assert words_of(spec["jobTemplate"]["spec"]["template"])[-1] == "--again"


@pytest.mark.full
def test_a_job_that_runs_something_else_has_another_name() -> None:
    first = of_kind(chart({}), "Job")
    assert first.keys() == of_kind(chart({}), "Job").keys()
    for other in ({"image": "books:2"}, {"crawl": {"command": ["run", "spider.py", "--rate", "9/s"]}}):
        assert first.keys() != of_kind(chart(other), "Job").keys()


@pytest.mark.full
def test_a_crawl_goes_on_after_its_node_is_gone_and_ends_after_a_mistake() -> None:
    (job,) = of_kind(chart({}), "Job").values()
    ignored, failed = job["spec"]["podFailurePolicy"]["rules"]
    assert ignored == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    # 130, a stop before the end, and 3, a server that is away, are tried again: see docs/how-to/return-codes.md.
    assert failed["onExitCodes"] == {"containerName": "crawl", "operator": "In", "values": [1, 2]}
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.full
def test_autoscalers_ask_for_what_is_wanted_and_leave_the_number_to_themselves() -> None:
    for form, kind in (("hpa", "HorizontalPodAutoscaler"), ("keda", "ScaledObject")):
        found = chart(FORMS[form])
        assert "replicas" not in of_kind(found, "Deployment")["books-worker"]["spec"]
        scaler = of_kind(found, kind)["books-worker"]
        assert scaler["spec"]["scaleTargetRef"]["name"] == "books-worker"
        check_metrics(json.dumps(scaler["spec"]))
    (query,) = (one["metadata"]["query"] for one in scaler["spec"]["triggers"])
    match = 'kind=~"http", crawl=~"books-[0-9]+", namespace="books"'
    assert query.startswith(f"sum(max by (crawl, kind) (shoal_workers_wanted{{{match}}})) or 0 * max(shoal_frontier_up")


@pytest.mark.full
def test_scaling_goes_as_fast_as_the_values_say_in_both_ways() -> None:
    speed = {
        "scaleUp": {"pods": 7, "seconds": 30},
        "scaleDown": {"percent": 20, "seconds": 90, "stabilizationSeconds": 600},
    }
    hpa = of_kind(chart({"autoscaling": {"mode": "hpa", **speed}}), "HorizontalPodAutoscaler")["books-worker"]
    keda = of_kind(chart({"autoscaling": {"mode": "keda", **speed}}), "ScaledObject")["books-worker"]
    behavior = keda["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior == hpa["spec"]["behavior"]
    assert behavior["scaleUp"]["policies"] == [{"type": "Pods", "value": 7, "periodSeconds": 30}]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 600


@pytest.mark.full
def test_the_monitors_bring_the_token_and_the_label_that_an_hpa_asks_for() -> None:
    found = chart(FORMS["watched"])
    (endpoint,) = of_kind(found, "ServiceMonitor")["books-serve"]["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "books-secrets", "key": "reader_token"}
    (relabeling,) = endpoint["metricRelabelings"]
    assert (relabeling["sourceLabels"], relabeling["targetLabel"]) == (["crawl"], "spider")
    rules = of_kind(found, "PrometheusRule")["books-alerts"]["spec"]
    assert rules == yaml.safe_load((ROOT / "deploy" / "prometheus" / "shoal-rules.yaml").read_text())
    for one in of_kind(found, "ServiceMonitor") | of_kind(found, "PodMonitor"):
        assert one.startswith("books-")


@pytest.mark.full
@pytest.mark.parametrize(
    ("address", "is_reached"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("10.96.0.1", False),
        ("172.20.0.1", False),
        ("192.168.7.7", False),
        ("100.100.0.1", False),
        ("169.254.169.254", False),
        ("fd00:ec2::254", False),
        ("fe80::1", False),
    ],
)
def test_workers_reach_the_internet_and_nothing_of_the_cluster(address: str, is_reached: bool) -> None:
    egress = of_kind(chart({}), "NetworkPolicy")["books-shoal"]["spec"]["egress"]
    blocks = [to["ipBlock"] for rule in egress if "ports" not in rule for to in rule["to"]]
    assert len(blocks) == 2
    assert (
        any(
            within(address, block["cidr"]) and not any(within(address, one) for one in block["except"])
            for block in blocks
        )
        == is_reached
    )


def within(address: str, cidr: str) -> bool:
    network = ipaddress.ip_network(cidr)
    found = ipaddress.ip_address(address)
    return found.version == network.version and found in network


@pytest.mark.full
def test_nothing_but_shoal_reaches_the_bundled_servers_and_they_reach_nothing() -> None:
    policies = of_kind(chart({}), "NetworkPolicy")
    for name in ("books-redis", "books-postgres"):
        spec = policies[name]["spec"]
        assert (spec["policyTypes"], spec["egress"]) == (["Ingress", "Egress"], [])
        (rule,) = spec["ingress"]
        (source,) = rule["from"]
        assert source["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "books"
        assert "namespaceSelector" not in source


@pytest.mark.full
def test_servers_of_ones_own_take_the_place_of_the_bundled_ones() -> None:
    found = chart(FORMS["servers of one's own"])
    assert not of_kind(found, "StatefulSet")
    for _, pod in pods(found):
        values = {one["name"]: one["value"] for one in container(pod)["env"]}
        assert values["SHOAL_FRONTIER"] == OWN_SERVERS["redis"]["url"]
        assert values["SHOAL_STORE"] == OWN_SERVERS["postgres"]["url"]
    egress = of_kind(found, "NetworkPolicy")["books-shoal"]["spec"]["egress"]
    assert {"to": [{"ipBlock": {"cidr": "10.0.0.9/32"}}], "ports": [{"protocol": "TCP", "port": 5432}]} in egress


@pytest.mark.full
def test_people_reach_the_dashboard_by_the_name_of_its_ingress() -> None:
    found = chart(FORMS["an ingress"])
    (pod,) = [pod for one, pod in pods(found) if one["metadata"]["name"] == "books-serve"]
    assert words_of(pod)[-2:] == ["--public-host", "books.example.com"]
    (rule,) = of_kind(found, "Ingress")["books-serve"]["spec"]["rules"]
    assert rule["host"] == "books.example.com"


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"workers": {"worker": {"replica": 3}}}, "workers.worker: Additional property replica is not allowed"),
        ({"autoscalling": {}}, "Additional property autoscalling is not allowed"),
        ({"autoscaling": {"mode": "keta"}}, 'autoscaling.mode must be one of the following: "none", "hpa", "keda"'),
        ({"redis": {"bundle": False}}, "redis: Additional property bundle is not allowed"),
        ({"network": {"alsoAllowed": ["10.0.0.1"]}}, "network.alsoAllowed.0: Invalid type. Expected: object"),
        ({"crawl": {"schedule": "daily"}}, "crawl.schedule: Does not match pattern"),
        ({"disruption": {"maxUnavailable": 0}}, "disruption.maxUnavailable: Must be greater than or equal to 1"),
        ({"crawl": {"command": "run books.py"}}, "crawl.command: Invalid type. Expected: array"),
        ({"secret": ""}, "secret: String length must be greater than or equal to 1"),
    ],
)
def test_a_slip_in_the_values_is_refused_by_its_name(values: dict[str, Any], line: str) -> None:
    with pytest.raises(ChartError) as caught:
        render(given(values))
    assert line in str(caught.value)


def given_over(defaults: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Values as Helm sees them before it checks them: maps are merged."""
    both = {
        name: given_over(defaults[name], value)
        if isinstance(value, dict) and isinstance(defaults.get(name), dict)
        else value
        for name, value in values.items()
    }
    return {**defaults, **both}


@pytest.mark.full
@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"redis": {"bundled": False}}, "redis.url is missing: set it, or redis.bundled"),
        ({"redis": {"url": "redis://queue/0"}}, "redis.bundled and redis.url are both set"),
        ({"postgres": {"bundled": False, "url": "postgresql://shoal:hidden@db/shoal"}}, "postgres.url has a password"),
        ({"autoscaling": {"mode": "hpa", "minReplicas": 0}}, "to which an HPA does not scale"),
        ({"autoscaling": {"mode": "keda", "minReplicas": 30}}, "minReplicas is more than autoscaling.maxReplicas"),
        ({"serve": {"ingress": {"enabled": True}}}, "serve.ingress.host is missing"),
    ],
)
def test_values_that_cannot_work_together_are_refused(values: dict[str, Any], line: str) -> None:
    with pytest.raises(ChartError, match=line):
        render(given(values))


def test_the_manifests_of_the_package_are_what_the_chart_renders() -> None:
    """Stale: `make docs` writes them anew."""
    rendered = dict(manifests())
    for name, text in rendered.items():
        assert (FOLDER / name).read_text() == text, name
    own = {path.name for path in FOLDER.iterdir() if not path.name.startswith("values")}
    assert own == set(rendered)


SPIDER = """
from shoal import Spider

class Books(Spider):
    name = "my_Books"
    start = "https://books.example/"
    label = "new"

    def parse(self, page):
        return []
"""


@pytest.mark.full
def test_the_plain_manifests_are_what_helm_would_make_of_the_values(folder: Folder) -> None:
    (folder.path / "books.py").write_text(SPIDER)
    flags = [
        "--kinds",
        "http,browser",
        "-a",
        "label=$(HOME) & <b> 'x': \"é\"",
        "--image",
        "registry.example:5000/books:1",
    ]
    folder.run("deploy", "k8s", "fleet", "--spider", "books.py", *flags, "--set", "grace_seconds=45")
    fleet = folder.path / "fleet"
    values = yaml.safe_load((fleet / "values.yaml").read_text())
    for name, more in (
        ("*", {}),
        ("more/daily", {"crawl": {"schedule": "0 4 * * *"}}),
        ("more/hpa", {"autoscaling": {"mode": "hpa"}}),
        ("more/keda", {"autoscaling": {"mode": "keda"}}),
        ("more/monitoring", {"monitoring": {"enabled": True, "rules": True}}),
    ):
        done = render(given_over(values, more), release="my-books", chart=fleet / "helm" / "shoal")
        of_chart = [one for text in done.values() for one in documents(text)]
        plain = [
            one for path in sorted((fleet / "manifests").glob(f"{name}.yaml")) for one in documents(path.read_text())
        ]
        assert len(plain) >= (1 if name != "*" else 15)
        for one in plain:
            assert one in of_chart, one["metadata"]["name"]
        assert name != "*" or len(plain) == len(of_chart)
