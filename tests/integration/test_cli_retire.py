"""Worker processes that retire: `--max-pages`, `--max-memory`, `--max-seconds`, `--replace`, `--idle-seconds`."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Folder

from shoal.testing.sites.site_process import SiteProcess, site_process

PAGES = 120
SPIDER = """
import asyncio, os, signal
from pathlib import Path
from shoal import Item, Spider

KEPT = []

class Graph(Spider):
    start = ["{url}"]
    settings = {{"allow_private": True, "obey_robots": False, "rate": "unlimited", "grace_seconds": 0.1}}

    async def parse(self, page):
        {first}
        yield Item(key=page.url)
        yield page.follow("a")
"""


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[SiteProcess]:
    with site_process("--graph", str(PAGES), log=tmp_path / "hits.jsonl") as site:
        yield site


def write(folder: Folder, site: SiteProcess, *, first: str = "pass") -> str:
    (folder.path / "graph.py").write_text(SPIDER.format(url=site.url, first=first))
    return "graph.py"


def check_whole(site: SiteProcess, summary: dict[str, Any], *, pages: int = PAGES) -> None:
    """Nothing is lost, nothing was done twice."""
    assert (summary["state"], summary["done"], summary["items"]) == ("finished", pages, pages)
    assert (summary["retried"], summary["lost"]) == (0, 0)
    assert set(Counter(hit.path for hit in site.hits()).values()) == {1}


@pytest.mark.full
def test_a_leaking_handler_is_harmless_in_a_fleet_whose_workers_retire(folder: Folder, graph: SiteProcess) -> None:
    name = write(folder, graph, first="KEPT.append(bytearray(5_000_000))")
    result = folder.run("run", name, "--workers", "2", "--worker-max-memory", "200MB", "--json")
    check_whole(graph, json.loads(result.stdout))
    said = [line for line in result.stderr.splitlines() if "retired with" in line]
    assert len(said) >= 2
    assert all(line.endswith("; a new one takes its place") for line in said)
    assert "ended with" not in result.stderr
    assert "gone" not in folder.run("status").stdout


def test_a_crawl_with_one_worker_goes_on_when_that_retires(folder: Folder, graph: SiteProcess) -> None:
    result = folder.run("run", write(folder, graph), "--worker-max-pages", "50", "--json")
    check_whole(graph, json.loads(result.stdout))
    assert result.stderr.count("retired after 50 pages; a new one takes its place") == 2


def test_a_worker_retires_after_its_pages_and_another_one_goes_on(folder: Folder, graph: SiteProcess) -> None:
    name = write(folder, graph)
    with folder.start("run", name, "--rate", "1/m") as running:
        folder.wait_for_pages(1, crawl="graph-1")
        running.kill()
    folder.hurry(graph.url, crawl="graph-1")
    said = folder.run("worker", name, "--max-pages", "7").stderr
    assert said.splitlines()[-1] == "retired after 7 pages"
    assert folder.json("status", "graph-1")["progress"]["leased"] == 0
    said = folder.run("worker", name, "--max-pages", "50", "--replace", "--burst").stderr
    assert said.count("retired after 50 pages; a new worker takes its place") == 2
    status = folder.json("status", "graph-1")
    check_whole(graph, {**status, **status["progress"]})


def test_a_crawl_that_fails_keeps_no_other_one_from_its_end(folder: Folder, graph: SiteProcess) -> None:
    name = write(folder, graph)
    second = f"class Second(Graph):\n    start = [f'{graph.url}?none={{n}}' for n in range(20)]\n"
    with (folder.path / name).open("a") as file:
        file.write(second)
    for spider in ("Graph", "Second"):
        with folder.start("run", f"{name}:{spider}", "--rate", "1/m") as running:
            folder.wait_for_pages(0, crawl=f"{spider.lower()}-1")
            running.send_signal(signal.SIGINT)
            running.communicate()
        folder.hurry(graph.url, crawl=f"{spider.lower()}-1")
    said = folder.run("worker", name, "--max-pages", "30", "--replace", "--burst", code=1).stderr
    assert said.count("second-1 failed: every start URL failed: http_404 (20)") == 1
    ends = {one["crawl"]: (one["state"], one["left"]) for one in folder.json("status")}
    assert ends == {"graph-1": ("finished", 0), "second-1": ("finished", 0)}


def test_pages_in_hand_are_finished_however_long_they_take(folder: Folder, graph: SiteProcess) -> None:
    # Longer than the worker may live, and than pages have when people stop it.
    name = write(folder, graph, first="await asyncio.sleep(1.5)")
    result = folder.run("run", name, "--worker-max-seconds", "1s", "--max-pages", "9", "--json")
    check_whole(graph, json.loads(result.stdout), pages=9)
    assert "retired after 1 s; a new one takes its place" in result.stderr


def test_a_worker_that_is_killed_while_it_retires_loses_nothing(folder: Folder, graph: SiteProcess) -> None:
    kill = "await asyncio.sleep(1.7); Path('killed').touch(); os.kill(os.getpid(), signal.SIGKILL)"
    name = write(folder, graph, first=f"if not Path('killed').exists(): {kill}")
    result = folder.run("run", name, "--worker-max-seconds", "1s", "--json")
    summary = json.loads(result.stdout)
    assert "ended with SIGKILL" in result.stderr
    assert (summary["state"], summary["done"], summary["items"]) == ("finished", PAGES, PAGES)


def test_a_worker_without_work_ends(folder: Folder, graph: SiteProcess) -> None:
    name = write(folder, graph)
    folder.run("run", name)
    said = folder.run("worker", name, "--idle-seconds", "1").stderr
    assert said.splitlines()[-1] == "ends: no work for 1 s (--idle-seconds)"
    # One that may not end so is not replaced either: it has nothing to do.
    folder.run("worker", name, "--idle-seconds", "1s", "--max-pages", "5", "--replace")


def test_slips_are_named_where_they_are_made(folder: Folder, graph: SiteProcess) -> None:
    name = write(folder, graph)
    assert "'--max-memory'. Did you mean '--worker-max-memory'?" in folder.refusal("run", name, "--max-memory", "1GB")
    assert "'--worker-max-pages'. Did you mean '--max-pages'?" in folder.refusal("worker", name, "--worker-max-pages=1")
    assert "--max-memory: size '1 potato' is not" in folder.refusal("worker", name, "--max-memory", "1 potato")
    assert "--max-seconds: duration '1x' is not" in folder.refusal("worker", name, "--max-seconds", "1x")
    said = folder.run("worker", name, "--max-memory", "3MB", code=2).stderr
    assert "max-memory 3 MB: a worker of this spider has " in said
