"""`shoal deploy k8s`: manifests that a cluster takes, which name only what shoal has, and secrets for it."""

from __future__ import annotations

import functools
import math
import os
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_documents import check_documents, check_metrics, container, of_kind, pods, words_of
from command_line import Folder
from deployed_files import KNOWN_PORTS, check_redis, documents

from shoal.deploy.plan import CLOSING_SECONDS, METRICS_PORT, SERVE_PORT
from shoal.deploy.writing import PASSWORDS, READER_TOKEN
from shoal.serve.access import Access
from shoal.testing.servers.programs import free_port
from shoal.testing.waiting import wait_until

ROOT = Path(__file__).parents[2]
SPIDER = """
from shoal import Spider

class Books(Spider):
    start = "https://books.example/"
    label = "new"

    def parse(self, page):
        return []
"""
HASHED = re.compile("(?<=-crawl)-[0-9a-f]{8}$")
TOKEN = "a-token-for-this-test"


@pytest.fixture
def project(folder: Folder) -> Folder:
    (folder.path / "books.py").write_text(SPIDER)
    return folder


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command writes without flags."""
    folder = Folder(tmp_path_factory.mktemp("plain"))
    (folder.path / "books.py").write_text(SPIDER)
    return deployed(folder)


def deployed(folder: Folder, *flags: str) -> Path:
    folder.run("deploy", "k8s", "fleet", "--spider", "books.py", *flags)
    return folder.path / "fleet"


def manifests(fleet: Path, pattern: str = "*.yaml") -> list[dict[str, Any]]:
    paths = sorted((fleet / "manifests").glob(pattern))
    return [one for path in paths for one in documents(path.read_text())]


def pod_of(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The template of the pods of the document with this name. That of a Job ends with a hash."""
    (pod,) = [pod for one, pod in pods(found) if HASHED.sub("", one["metadata"]["name"]) == name]
    return dict(pod)


def test_a_cluster_takes_the_manifests_and_they_run_this_crawl(project: Folder) -> None:
    flags = ["--rate", "4/s", "-a", "label=$(HOME) $9", "--kinds", "http,browser", "--set", "grace_seconds=44.5"]
    fleet = deployed(
        project, *flags, "--archive", "s3://bucket/pages", "--workers", "5", "--image", "registry.example/b:1"
    )
    found = manifests(fleet)
    check_documents(found)
    crawl, worker, browser = (pod_of(found, f"books-{name}") for name in ("crawl", "worker", "worker-browser"))
    assert {"rate=4/s", "label=$(HOME) $9", "s3://bucket/pages"} <= set(words_of(crawl))
    assert words_of(browser)[:4] == ["worker", "books.py", "--kinds", "browser"]
    images = [container(pod)["image"] for pod in (crawl, worker, browser)]
    assert images == ["registry.example/b:1", "registry.example/b:1", "registry.example/b:1-browser"]
    assert of_kind(found, "Deployment")["books-worker"]["spec"]["replicas"] == 5
    for pod in (crawl, worker, browser):
        assert pod["spec"]["terminationGracePeriodSeconds"] == math.ceil(44.5) + CLOSING_SECONDS


@pytest.mark.full
def test_what_some_want_is_taken_by_a_cluster_as_well(project: Folder) -> None:
    fleet = deployed(project, "--kinds", "http,browser")
    found = manifests(fleet)
    for name in ("daily", "monitoring", "hpa", "keda"):
        more = manifests(fleet, f"more/{name}.yaml")
        check_documents([*found, *more])
    for name in ("hpa", "keda"):
        more = manifests(fleet, f"more/{name}.yaml")
        assert [one["spec"]["scaleTargetRef"]["name"] for one in more] == ["books-worker", "books-worker-browser"]
        check_metrics((fleet / "manifests" / "more" / f"{name}.yaml").read_text())


@pytest.mark.full
def test_every_port_is_one_of_shoals_and_each_service_leads_to_one(fleet: Path) -> None:
    found = manifests(fleet)
    ports: dict[str, dict[str, int]] = {}
    for _, pod in pods(found):
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        ports[component] = {port["name"]: port["containerPort"] for port in container(pod).get("ports", [])}
    assert ports == {
        "crawl": {},
        "worker": {"metrics": METRICS_PORT},
        "serve": {"http": SERVE_PORT},
        "redis": {"redis": 6379},
        "postgres": {"postgres": 5432},
    }
    assert {SERVE_PORT, METRICS_PORT} == KNOWN_PORTS
    for service in of_kind(found, "Service").values():
        component = service["spec"]["selector"]["app.kubernetes.io/component"]
        for port in service["spec"]["ports"]:
            assert ports[component][port["targetPort"]] == port["port"]
    assert all(
        service["spec"].get("type", "ClusterIP") == "ClusterIP" for service in of_kind(found, "Service").values()
    )
    by_port = {
        number: words_of(pod_of(found, name)) for number, name in ((9100, "books-worker"), (8642, "books-serve"))
    }
    assert all(any(str(number) in word for word in command) for number, command in by_port.items())


@pytest.mark.full
def test_the_probes_pass_while_the_process_answers_and_fail_when_it_is_gone(project: Folder, fleet: Path) -> None:
    found = manifests(fleet)
    for name, command in (("books-worker", ["worker", "books.py", "--metrics"]), ("books-serve", ["serve", "--port"])):
        inside = container(pod_of(found, name))
        path = inside["livenessProbe"]["httpGet"]["path"]
        assert path == inside["startupProbe"]["httpGet"]["path"]
        own = free_port()
        asked = functools.partial(passes, f"http://127.0.0.1:{own}{path}")
        with project.start(*command, str(own), "--frontier", "crawls.db") as process:
            wait_until(asked, otherwise=f"{command} is not healthy")
            process.terminate()
            process.communicate(timeout=30)
            assert process.returncode == 0
        assert not asked()


def passes(url: str, token: str = "") -> bool:
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return 200 <= answer.status < 400
    except (OSError, urllib.error.HTTPError):
        return False


@pytest.mark.full
def test_the_dashboard_answers_probes_by_address_and_a_forwarded_port_by_name(fleet: Path) -> None:
    command = words_of(pod_of(manifests(fleet), "books-serve"))
    host = command[command.index("--host") + 1]
    access = Access(token=TOKEN, reader_token="", hosts=[host], any_address=host == "0.0.0.0")
    assert access.knows_host("10.4.0.17")
    assert access.knows_host("localhost")
    assert not access.knows_host("evil.example")


@pytest.mark.full
def test_the_monitor_collects_with_a_token_that_may_only_look(project: Folder, fleet: Path) -> None:
    (monitor,) = of_kind(manifests(fleet, "more/monitoring.yaml"), "ServiceMonitor").values()
    (endpoint,) = monitor["spec"]["endpoints"]
    credentials = endpoint["authorization"]["credentials"]
    secret = (fleet / "secrets" / credentials["key"]).read_text()
    assert secret == secret.strip(), "Prometheus sends it with its line end"
    serve = pod_of(manifests(fleet), "books-serve")
    names = {one["name"]: one["value"] for one in container(serve)["env"]}
    files = {
        name: str(fleet / "secrets" / Path(path).name) for name, path in names.items() if name.endswith("TOKEN_FILE")
    }
    own = free_port()
    url = f"http://127.0.0.1:{own}"
    with project.start("serve", "--port", str(own), "--frontier", "crawls.db", env=environ(files)) as process:
        wait_until(lambda: passes(f"{url}/healthz"), otherwise="it does not answer")
        assert passes(f"{url}{endpoint['path']}", secret)
        assert not passes(f"{url}{endpoint['path']}")
        process.terminate()
        process.communicate(timeout=30)


def environ(more: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")} | more


@pytest.mark.full
def test_the_secret_has_every_file_that_is_read_and_values_have_none(fleet: Path) -> None:
    written = {path.name for path in (fleet / "secrets").iterdir()}
    assert written == {*PASSWORDS, READER_TOKEN}
    read = {
        item["key"]
        for _, pod in pods(manifests(fleet))
        for volume in pod["spec"]["volumes"]
        for item in volume.get("secret", {}).get("items", [])
    }
    assert read == written
    texts = [path.read_text() for path in fleet.rglob("*.yaml")]
    for name in written:
        secret = (fleet / "secrets" / name).read_text().strip()
        assert len(secret) >= 32
        assert not any(secret in text for text in texts)


@pytest.mark.full
def test_the_bundled_redis_keeps_what_it_promises(fleet: Path, tmp_path: Path) -> None:
    command = container(pod_of(manifests(fleet), "books-redis"))["command"]
    script = command[-1].replace("/run/secrets/shoal", str(fleet / "secrets"))
    check_redis([*command[:-1], script], password=fleet / "secrets" / "redis_password", folder=tmp_path)


@pytest.mark.full
def test_a_job_that_runs_something_else_has_another_name(project: Folder) -> None:
    first = of_kind(manifests(deployed(project)), "Job").keys()
    assert first == {"books-crawl-47887dbd"}, "the same in every release of shoal, or an upgrade begins a Job"
    assert of_kind(manifests(deployed(project, "--force", "--rate", "9/s")), "Job").keys() != first
    assert of_kind(manifests(deployed(project, "--force", "--image", "books:2")), "Job").keys() != first


@pytest.mark.full
def test_a_spider_that_renders_or_has_stages_is_scaled_by_all_its_kinds(project: Folder) -> None:
    source = SPIDER.replace("from shoal import Spider", "from shoal import Spider, handler").replace(
        "    def parse", '    @handler(kind="parse")\n    def book(self, page):\n        return []\n\n    def parse'
    )
    (project.path / "books.py").write_text(source)
    fleet = deployed(project, "--archive", "s3://bucket/pages")
    values = yaml.safe_load((fleet / "values.yaml").read_text())
    assert values["workers"]["worker"]["kinds"] == ["http", "parse"]
    (scaler,) = manifests(fleet, "more/keda.yaml")
    assert 'kind=~"http|parse"' in scaler["spec"]["triggers"][0]["metadata"]["query"]


@pytest.mark.full
def test_refuses_a_spider_whose_name_a_cluster_does_not_take(project: Folder) -> None:
    (project.path / "books.py").write_text(SPIDER.replace("    start", '    name = "books of ours"\n    start'))
    done = project.run("deploy", "k8s", "fleet", "--spider", "books.py", code=2)
    assert "'books of ours' cannot be a label of Kubernetes" in done.stderr
    assert not (project.path / "fleet").exists()


def test_the_files_in_deploy_are_those_that_the_command_writes(folder: Folder) -> None:
    """Stale: `make docs` writes them anew."""
    folder.run("deploy", "k8s", "fleet", "--spider", str(ROOT / "examples" / "books.py"))
    fleet = folder.path / "fleet"
    new = [path.relative_to(fleet) for path in fleet.rglob("*") if path.is_file() and path.parent.name != "secrets"]
    assert len(new) >= 28
    for path in new:
        assert (ROOT / "deploy" / path).read_bytes() == (fleet / path).read_bytes(), path
    for name in ("helm", "manifests"):
        kept = {path.relative_to(ROOT / "deploy") for path in (ROOT / "deploy" / name).rglob("*") if path.is_file()}
        assert kept <= set(new), kept - set(new)


@pytest.mark.full
def test_the_alerts_of_the_chart_are_those_of_the_fleet() -> None:
    chart = ROOT / "src" / "shoal" / "deploy" / "templates" / "helm" / "shoal"
    assert (chart / "files" / "shoal-rules.yaml").read_text() == (
        ROOT / "deploy" / "prometheus" / "shoal-rules.yaml"
    ).read_text()
