"""Figures for Prometheus: told over HTTP, named by the conventions, bounded; what is deployed beside them uses them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Folder
from mixed_kinds import MIXED, WAITING, mix_kinds
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from serving import Serving, serving

from shoal.frontier import open_frontier
from shoal.model import Crawl
from shoal.serve.board import ENDED_SHOWN
from shoal.serve.metrics import HOSTS_SHOWN, cumulative
from shoal.testing.fakes import task_for
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
PRODUCTS = 20
NAME = re.compile(r"\bshoal_[a-z_]+")


@pytest.fixture
def server(folder: Folder) -> Iterator[Serving]:
    with serving(folder) as running:
        yield running


def figures(server: Serving) -> dict[str, Metric]:
    answer = server.get("/metrics", prefix="")
    assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, "text/plain")
    return {family.name: family for family in text_string_to_metric_families(answer.body.decode())}


def value(found: dict[str, Metric], name: str, **labels: str) -> float:
    samples = [one for family in found.values() for one in family.samples if one.name == name]
    (only,) = [one for one in samples if labels.items() <= one.labels.items()]
    return only.value


def test_counts_of_a_crawl_are_told(server: Serving, folder: Folder, site: SiteProcess) -> None:
    folder.run("run", folder.spider(site.url))
    counts = server.get("/crawls/books-1").json["counts"]
    found = figures(server)
    assert value(found, "shoal_frontier_up") == 1
    assert value(found, "shoal_crawl_state", crawl="books-1", state="finished") == 1
    assert value(found, "shoal_tasks", crawl="books-1", state="done") == counts["done"]
    assert sum(one.value for one in found["shoal_pages"].samples) == counts["done"]
    assert value(found, "shoal_workers", crawl="books-1", presence="left") == 1
    assert value(found, "shoal_fetch_seconds_bucket", crawl="books-1", le="+Inf") >= counts["done"]
    assert value(found, "shoal_received_bytes_total", crawl="books-1") > 1_000
    assert value(found, "process_resident_memory_bytes") > 1_000_000


def test_names_follow_the_conventions(server: Serving) -> None:
    for family in figures(server).values():
        assert family.documentation, family.name
        assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name)
        if family.name.startswith("shoal_") and ("time" in family.name or "memory" in family.name):
            assert family.name.endswith(("_seconds", "_bytes"))


async def test_of_many_hosts_the_busiest_are_told(folder: Folder) -> None:
    frontier = await open_frontier(str(folder.path / "shoal.db"))
    await frontier.open_crawl(Crawl(id="wide-1", spider="wide"))
    await frontier.put("wide-1", [task_for(f"http://h{number}.example/") for number in range(3 * HOSTS_SHOWN)])
    await frontier.close()
    with serving(folder) as server:
        found = figures(server)
    assert len(found["shoal_host_waiting"].samples) == HOSTS_SHOWN
    assert not any("/" in text for family in found.values() for one in family.samples for text in one.labels.values())


async def test_tasks_and_workers_are_told_by_kind(folder: Folder) -> None:
    await mix_kinds(folder.path)
    with serving(folder) as server:
        found = figures(server)
    for kind, waiting in WAITING.items():
        assert value(found, "shoal_waiting_tasks", crawl=MIXED, kind=kind) == waiting
    wanted = {kind: value(found, "shoal_workers_wanted", crawl=MIXED, kind=kind) for kind in WAITING}
    # Two workers are at work; nobody does the pages for a browser, so one for these is wanted beside them.
    assert (sum(wanted.values()), wanted["browser"]) == (3, 1)


def test_buckets_are_cumulative() -> None:
    counts = [1, 0, 2, *[0] * 8, 4]
    assert cumulative(counts)[0] == ("0.01", 1.0)
    assert cumulative(counts)[-1] == ("+Inf", 7.0)


def test_a_frontier_that_is_away_is_a_figure(folder: Folder, own_redis: RedisServer) -> None:
    with serving(folder, "--frontier", own_redis.url) as server:
        assert value(figures(server), "shoal_frontier_up") == 1
        own_redis.kill()
        assert value(figures(server), "shoal_frontier_up") == 0
        own_redis.start()
        wait_until(lambda: value(figures(server), "shoal_frontier_up") == 1, otherwise="it stays away", pause=0.1)


async def test_a_push_into_the_inbox_of_a_finished_crawl_wants_a_worker(folder: Folder, own_redis: RedisServer) -> None:
    """Of more than the metrics tell of: this one ended before all others."""
    frontier = await open_frontier(own_redis.url)
    for number in range(ENDED_SHOWN + 1):
        await frontier.open_crawl(Crawl(id=f"books-{number}", spider="books"))
        await frontier.lease([f"books-{number}"], 1, worker="w", seconds=9.0, horizon=0.0)
    await frontier.close()
    with serving(folder, "--frontier", own_redis.url) as server:
        assert [one for one in figures(server)["shoal_workers_wanted"].samples if one.value] == []
        own_redis.call("LPUSH", "shoal:inbox:books-0", "https://books.example/", "https://books.example/2")
        wait_until(
            lambda: [
                (one.labels["crawl"], one.value)
                for one in figures(server)["shoal_workers_wanted"].samples
                if one.value
            ] == [("books-0", 1.0)],
            otherwise="no worker is wanted",
            pause=0.5,
        )  # fmt: skip


def test_a_token_is_needed(folder: Folder) -> None:
    with serving(folder, token="a-token-for-this-test") as server:
        assert server.get("/metrics", prefix="").status == 200
        server.token = ""
        assert server.get("/metrics", prefix="").status == 401


def expressions(found: Any) -> Iterator[str]:
    """Every expression of a dashboard or of rules."""
    if isinstance(found, dict):
        for name, inner in found.items():
            if name in ("expr", "query") and isinstance(inner, str):
                yield inner
            else:
                yield from expressions(inner)
    elif isinstance(found, list):
        for inner in found:
            yield from expressions(inner)


@pytest.mark.full
def test_what_is_deployed_asks_for_metrics_that_exist(server: Serving) -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "shoal.json").read_text())
    rules = yaml.safe_load((DEPLOY / "prometheus" / "shoal-rules.yaml").read_text())
    text = server.get("/metrics", prefix="").body.decode()
    told = set(re.findall(r"^# TYPE (\S+) (\w+)", text, re.MULTILINE))
    names = {name for name, _ in told}
    several = [name for name, kind in told if kind in ("histogram", "summary")]
    names |= {f"{name}_{end}" for name in several for end in ("sum", "count", "bucket")}
    for source in (dashboard, rules):
        asked = {name for expression in expressions(source) for name in NAME.findall(expression)}
        assert len(asked) > 5
        assert asked <= names
