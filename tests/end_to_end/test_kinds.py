"""Crawls whose pages are of several kinds: each is done by workers of its kind, at one pace for the host."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.loopback import busiest_window
from shoal.testing.sites.site_process import SiteProcess, site_process
from shoal.testing.waiting import eventually

PAGES = 40
RATE = 20
SPIDER = """
from shoal import Item, Spider


class Graph(Spider):
    name = "graph"
    start = "{url}"
    rate = "20/s"
    obey_robots = False
    allow_private = True

    def parse(self, page):
        yield Item(key=page.url)
        for request in page.follow("a"):
            if int(request.url.rpartition("/")[2]) % 3 == 0:
                request.kind = "browser"
            yield request
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SiteProcess]:
    with site_process("--graph", str(PAGES), log=tmp_path / "hits.jsonl") as site:
        yield site


@pytest.fixture(params=["sqlite", "redis"])
def frontier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "shoal.db")
        return
    server = RedisServer(tmp_path / "redis").start()
    yield server.url
    server.kill()


class Commands:
    """Commands in one folder, those that still run ended with the test."""

    def __init__(self, folder: Path, frontier: str) -> None:
        self._folder = folder
        self._places = ["--frontier", frontier, "--store", "results.db"]
        self._stack = contextlib.ExitStack()

    def start(self, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        """The process and the file with its messages."""
        log = self._folder / f"{arguments[0]}-{len(list(self._folder.iterdir()))}.log"
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal", *arguments, *self._places],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=self._stack.enter_context(log.open("wb")),
        )
        self._stack.callback(self._end, process)
        return process, log

    def output(self, *arguments: str) -> Any:
        command = [sys.executable, "-m", "shoal", *arguments, *self._places, "--json"]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, check=True, timeout=30)
        return json.loads(done.stdout)

    def close(self) -> None:
        self._stack.close()

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.terminate()
        process.wait(20)


@pytest.fixture
def commands(tmp_path: Path, frontier: str, site: SiteProcess) -> Iterator[Commands]:
    folder = tmp_path / "crawl"
    folder.mkdir()
    (folder / "graph.py").write_text(SPIDER.format(url=site.urls[0]))
    commands = Commands(folder, frontier)
    yield commands
    commands.close()


def number_of(url: str) -> int:
    return int(url.rpartition("/")[2])


async def ended(process: subprocess.Popen[bytes]) -> int:
    await eventually(lambda: process.poll() is not None, seconds=60)
    assert process.returncode is not None
    return process.returncode


async def test_each_kind_is_done_by_its_workers_and_the_host_has_one_pace(
    commands: Commands, site: SiteProcess, tmp_path: Path
) -> None:
    run, log = commands.start("run", "graph.py")
    lacking = "of the kind browser wait, and no worker does such tasks: `shoal worker graph.py --kinds browser` does"
    await eventually(lambda: lacking in log.read_text(), seconds=30)
    status = commands.output("status", "graph-1")
    assert status["state"] == "running"
    kinds = {one["kind"]: one for one in status["kinds"]}
    assert (kinds["http"]["waiting"], kinds["http"]["workers"], kinds["browser"]["workers"]) == (0, 1, 0)
    assert kinds["browser"]["waiting"] > 0
    assert run.poll() is None
    browser, _ = commands.start("worker", "graph.py", "--kinds", "browser", "--burst")
    assert await ended(browser) == 0
    assert await ended(run) == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "crawl" / "results.db")) as db:
        fetches = db.execute("SELECT url, worker FROM fetches").fetchall()
    assert len(fetches) == PAGES
    browsed = {worker for url, worker in fetches if number_of(url) % 3 == 0 and number_of(url)}
    others = {worker for url, worker in fetches if number_of(url) % 3}
    assert (len(browsed), len(others), len(browsed & others)) == (1, 1, 0)
    assert len(site.hits()) == PAGES
    assert busiest_window(site.hits(), seconds=1.0) <= RATE + 1
