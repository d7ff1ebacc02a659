"""The pods of a fleet, run as their containers would with the same words, variables and secrets, do a whole crawl."""

from __future__ import annotations

import functools
import json
import os
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from cluster_documents import container, pods, words_of
from command_line import Folder, Started
from deployed_files import documents, running_redis

from shoal.deploy.plan import METRICS_PORT
from shoal.testing.servers.postgres_server import POSTGRES_PASSWORD, PostgresServer
from shoal.testing.servers.programs import free_port
from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import wait_until

pytestmark = pytest.mark.full

PRODUCTS = 20


# Five seconds: two servers, three processes. Nothing else shows that the pods' variables fit their secrets and servers.
def test_the_pods_of_a_fleet_do_a_crawl_and_a_worker_stops_when_told(
    folder: Folder, site: SiteProcess, postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    folder.spider(site.url)
    folder.run("deploy", "k8s", "fleet", "--spider", "books.py")
    fleet = folder.path / "fleet"
    # The server of the tests has a password already.
    (fleet / "secrets" / "postgres_password").write_text(POSTGRES_PASSWORD)
    texts = [path.read_text() for path in (fleet / "manifests").glob("*.yaml")]
    of = {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod
        for text in texts
        for _, pod in pods(documents(text))
    }
    command = container(of["redis"])["command"]
    script = command[-1].replace("/run/secrets/shoal", str(fleet / "secrets"))
    data = tmp_path / "data"
    data.mkdir()
    with running_redis([*command[:-1], script], folder=data) as (port, _):
        there = {
            "books-redis:6379": f"127.0.0.1:{port}",
            "books-postgres:5432/shoal": f"127.0.0.1:{postgres.port}/{database}",
            "/run/secrets/shoal": str(fleet / "secrets"),
            f"0.0.0.0:{METRICS_PORT}": f"127.0.0.1:{free_port()}",
        }
        with started(of["worker"], fleet, there) as worker:
            address = there[f"0.0.0.0:{METRICS_PORT}"]
            wait_until(functools.partial(answers, f"http://{address}/metrics"), otherwise="the worker tells no metrics")
            with started(of["crawl"], fleet, there) as crawl:
                out, err = crawl.communicate(timeout=120)
            assert crawl.returncode == 0, out + err
            worker.terminate()
            out, err = worker.communicate(timeout=of["worker"]["spec"]["terminationGracePeriodSeconds"] + 60)
            assert worker.returncode == 0, out + err
        serve = of["serve"]
        serve["spec"]["containers"][0]["args"] = ["export", "books-1", "-o", "items.jsonl"]
        with started(serve, fleet, there) as export:
            export.communicate(timeout=120)
    lines = (fleet / "spiders" / "items.jsonl").read_text().splitlines()
    assert len({json.loads(line)["_key"] for line in lines}) == len(lines) == PRODUCTS


def started(pod: dict[str, Any], fleet: Path, there: dict[str, str]) -> Started:
    """The process of a pod: its words and variables, with the places of this machine in those of the cluster."""

    def here(text: str) -> str:
        for name, place in there.items():
            text = text.replace(name, place)
        return text

    own = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    given = {one["name"]: here(one["value"]) for one in container(pod)["env"]}
    return Folder(fleet / "spiders").start(*map(here, words_of(pod)), env=own | given)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
