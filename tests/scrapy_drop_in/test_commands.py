"""shoal's commands, and its API, on a crawl that Scrapy processes work on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scrapy_project import Project, fetched

from called_here import call_shoal
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import SiteProcess, site_process
from shoal.testing.waiting import SECONDS, wait_until

pytestmark = pytest.mark.full

PAGES = 150
SLOW = 4  # requests per second
BROKEN = """
    def parse(self, response):
        number = response.css("h1::text").get()
        if number == "3":
            raise ValueError("no price")
        yield {"key": number, "url": response.url}
        yield from response.follow_all(css="a", callback=self.parse)
"""


@contextmanager
def two_processes(project: Project, *options: str) -> Iterator[list[subprocess.Popen[str]]]:
    processes = [project.start("-s", "LOG_LEVEL=INFO", *options) for _ in range(2)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            if process.stdout is not None and not process.stdout.closed:
                process.communicate()


class Commands:
    """Commands on one crawl; each gives its JSON."""

    def __init__(self, project: Project, redis: RedisServer) -> None:
        self._project = project
        self._places = ("--frontier", redis.url)

    def __call__(self, *words: str) -> Any:
        return self._project.shoal(*words, *self._places)

    def status(self) -> Any:
        return self("status", "pages-1")

    def text(self, *words: str) -> str:
        """What a command without JSON prints, where its output is no terminal."""
        return call_shoal(self._project.folder, *words, *self._places).stdout


def check_pause(shoal: Commands, site: SiteProcess, processes: list[subprocess.Popen[str]]) -> None:
    """Paused: nothing new is fetched, and the processes stay. Resumed: they go on."""
    assert shoal("pause", "pages-1")["state"] == "paused"
    wait_until(lambda: shoal.status()["progress"]["leased"] == 0, otherwise="paused processes keep their leases")
    before = fetched(site).total()
    beats = wait_until(lambda: [worker["seen"] for worker in shoal.status()["workers"]], otherwise="no heartbeats")
    wait_until(
        lambda: min(worker["seen"] for worker in shoal.status()["workers"]) > max(beats) + 1.0,
        otherwise="paused processes give no heartbeats",
    )
    assert fetched(site).total() == before
    assert [process.poll() for process in processes] == [None, None]
    assert shoal("resume", "pages-1")["state"] == "running"
    wait_until(lambda: fetched(site).total() > before, otherwise="the crawl does not go on")


def check_api(project: Project, redis: RedisServer) -> None:
    command = [sys.executable, "-m", "shoal", "serve", "--port", "0", "--frontier", redis.url, "--json"]
    with subprocess.Popen(command, cwd=project.folder, text=True, stdout=subprocess.PIPE) as serving:
        try:
            assert serving.stdout is not None
            url = json.loads(serving.stdout.readline())["url"].rstrip("/")

            def get(path: str) -> Any:
                with urllib.request.urlopen(f"{url}/api/v1{path}", timeout=SECONDS) as answer:
                    return json.load(answer)

            crawls = wait_until(lambda: get("/crawls")["crawls"], otherwise="the API shows no crawl")
            assert [(crawl["id"], crawl["state"]) for crawl in crawls] == [("pages-1", "running")]
            assert [letter["reason"] for letter in get("/crawls/pages-1/dead")["letters"]] == [
                "handler: ValueError: no price"
            ]
            assert len(get("/crawls/pages-1/workers")["workers"]) == 2
        finally:
            serving.kill()


def check_steering(shoal: Commands, site: SiteProcess, processes: list[subprocess.Popen[str]]) -> None:
    check_pause(shoal, site, processes)
    assert shoal.text("top", "pages-1").startswith("pages-1 running, ")
    assert shoal("exits", "pages-1")["exits"] == []
    lane = shoal.status()["lanes"][0]["lane"]
    assert shoal("pace", lane, "unlimited", "pages-1")["is_known"]
    begun, left = time.monotonic(), PAGES - fetched(site).total()
    wait_until(lambda: fetched(site).total() == PAGES, otherwise="the crawl does not end", seconds=SECONDS)
    assert time.monotonic() - begun < left / SLOW / 2


def test_a_running_crawl_is_seen_and_steered(project: Project, tmp_path: Path, redis: RedisServer) -> None:
    shoal = Commands(project, redis)
    with site_process("--graph", str(PAGES), log=tmp_path / "hits.jsonl") as site:
        project.write(site.url, BROKEN, frontier=redis.url)
        with two_processes(project, "-s", f"SHOAL_RATE={SLOW}/s") as processes:
            wait_until(lambda: fetched(site).total() >= 10, otherwise="nothing is fetched")
            wait_until(lambda: shoal("dead", "list", "pages-1"), otherwise="the page that raises is no dead letter")
            check_api(project, redis)
            check_steering(shoal, site, processes)
            outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
            assert [process.returncode for process in processes] == [0, 0], outputs
        assert (shoal.status()["progress"]["done"], shoal.status()["progress"]["dead"]) == (PAGES - 1, 1)
        why = shoal("why", site.url.replace("/g/0", "/g/3"), "pages-1")
        assert (why["state"], why["sentence"]) == ("dead", "dead after 1 attempt: handler: ValueError: no price")


def test_a_crawl_that_is_cancelled_ends_its_processes_which_do_not_say_that_it_is_finished(
    project: Project, tmp_path: Path, redis: RedisServer
) -> None:
    shoal = Commands(project, redis)
    with site_process("--graph", str(PAGES), log=tmp_path / "hits.jsonl") as site:
        project.write(site.url, frontier=redis.url)
        with two_processes(project, "-s", f"SHOAL_RATE={SLOW}/s") as processes:
            wait_until(lambda: fetched(site).total() >= 10, otherwise="nothing is fetched")
            wait_until(lambda: len(shoal.status()["workers"]) == 2, otherwise="no two processes work")
            assert shoal("cancel", "pages-1", "--yes")["state"] == "cancelled"
            outputs = [process.communicate(timeout=SECONDS)[0] for process in processes]
        progress = shoal.status()["progress"]
        assert progress["cancelled"] > 0
        assert (progress["queued"], progress["leased"], progress["done"]) == (0, 0, fetched(site).total())
        for output in outputs:
            assert f"pages-1 was cancelled: {progress['cancelled']} tasks are set aside" in output
            assert "'finish_reason': 'shoal: pages-1 was cancelled" in output
            assert "Traceback" not in output
        assert shoal("resume", "pages-1")["state"] == "running"
        project.run("-s", "SHOAL_RATE=unlimited")
        assert shoal.status()["progress"]["done"] == PAGES
