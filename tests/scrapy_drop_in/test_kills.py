"""Scrapy processes and their Redis are killed again and again, and nothing is lost: where others lost one page in
ten."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from scrapy_project import Project, fetched
from scrapy_versions import OLDER, ScrapyVersion

from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import SiteProcess, site_process
from shoal.testing.waiting import SECONDS, wait_until

FLUSH_PAGES = 16
IN_HAND = 64  # pages in hand are twice the slots, and slots twice the 16 requests that Scrapy sends at once
AGAIN = IN_HAND + 2 * FLUSH_PAGES  # what a killed process had in hand, and what was done and not yet written
# Nobody reads what a process logs before it ends: a line per page would fill the pipe.
FLUSHING = ("-s", f"SHOAL_FLUSH_PAGES={FLUSH_PAGES}", "-s", "LOG_LEVEL=INFO")


class Plan(NamedTuple):
    """A crawl of so many pages, whose process is killed after each of these numbers of pages."""

    pages: int
    kills: tuple[int, ...]
    backend: str = "sqlite"


TWO_KILLS = Plan(200, (40, 120))
ON_REDIS = Plan(800, (150, 350, 600), backend="redis")
RUNS = [
    (ScrapyVersion(), TWO_KILLS),
    pytest.param(ScrapyVersion(), ON_REDIS, marks=pytest.mark.full),
    *(pytest.param(ScrapyVersion(version), Plan(120, (40,)), marks=pytest.mark.full) for version in OLDER),
]


def wait_for(site: SiteProcess, number: int, *processes: subprocess.Popen[str]) -> None:
    def has_come() -> bool:
        for process in processes:
            assert process.poll() is None, process.communicate()[0]
        return len(fetched(site)) >= number

    wait_until(has_come, otherwise=f"{len(fetched(site))} pages after {SECONDS} s, not {number}", pause=0.02)


def kill(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.kill()
        if process.stdout is not None and not process.stdout.closed:
            process.communicate()


def check(project: Project, site: SiteProcess, pages: int, *, places: Sequence[str] = (), again: int) -> None:
    """Every page is done, each item is there once, and so many pages were asked for again at most."""
    hits = fetched(site)
    assert len(hits) == pages
    assert sum(hits.values()) - pages <= again
    status = project.shoal("status", "pages-1", *places)
    counts = (status["state"], status["progress"]["done"], status["progress"]["dead"], status["left"])
    assert counts == ("finished", pages, 0, 0)
    assert sorted(int(item["key"]) for item in project.items(*places)) == list(range(pages))


@pytest.mark.parametrize(("project", "plan"), RUNS, indirect=["project"], ids=str)
def test_the_only_process_is_killed_again_and_again(
    project: Project, plan: Plan, tmp_path: Path, redis: RedisServer
) -> None:
    frontier = redis.url if plan.backend == "redis" else "shoal.db"
    with site_process("--graph", str(plan.pages), log=tmp_path / "hits.jsonl") as site:
        project.write(site.url, frontier=frontier)
        for number in plan.kills:
            process = project.start(*FLUSHING)
            try:
                wait_for(site, number, process)
            finally:
                kill(process)
        project.run()
        check(project, site, plan.pages, places=("--frontier", frontier), again=len(plan.kills) * AGAIN)


@pytest.mark.full
def test_of_two_processes_one_is_killed_and_the_other_finishes_the_crawl(
    project: Project, tmp_path: Path, redis: RedisServer
) -> None:
    with site_process("--graph", "400", log=tmp_path / "hits.jsonl") as site:
        project.write(site.url, frontier=redis.url)
        killed, other = (
            project.start(*FLUSHING, "-s", "SHOAL_RATE=150/s", "-s", "SHOAL_LEASE_SECONDS=5") for _ in range(2)
        )
        try:
            wait_for(site, 120, killed, other)
            kill(killed)
            output, _ = other.communicate(timeout=SECONDS)
        finally:
            kill(killed, other)
        assert other.returncode == 0
        assert "'finish_reason': 'finished'" in output
        check(project, site, 400, places=("--frontier", redis.url), again=AGAIN)


@pytest.mark.full
def test_redis_is_killed_while_two_processes_crawl(project: Project, tmp_path: Path, redis: RedisServer) -> None:
    with site_process("--graph", "400", log=tmp_path / "hits.jsonl") as site:
        project.write(site.url, frontier=redis.url)
        both = [project.start(*FLUSHING, "-s", "SHOAL_RATE=150/s") for _ in range(2)]
        try:
            for number in (100, 220):
                wait_for(site, number, *both)
                redis.kill()
                redis.start()
            outputs = [process.communicate(timeout=SECONDS)[0] for process in both]
        finally:
            kill(*both)
        for process, output in zip(both, outputs, strict=True):
            assert process.returncode == 0, output
            assert "'finish_reason': 'finished'" in output
            assert "Traceback" not in output
        # Redis writes its file before it answers: what it has said holds, and no page has to be asked for again.
        check(project, site, 400, places=("--frontier", redis.url), again=0)


SHOAL_SPIDER = """
import shoal

class Others(shoal.Spider):
    name = "others"
    start = ["{url}"]
    allow_private = True
    rate = "100/s"
    obey_robots = False

    def parse(self, page):
        yield {{"key": page.text("h1")}}
        yield from page.follow("a")
"""


@pytest.mark.full
def test_a_shoal_worker_and_two_scrapy_processes_on_one_redis_leave_each_other_alone(
    project: Project, tmp_path: Path, redis: RedisServer
) -> None:
    others = tmp_path / "others"
    others.mkdir()
    with (
        site_process("--graph", "300", log=tmp_path / "hits.jsonl") as site,
        site_process("--graph", "150", log=others / "hits.jsonl") as their_site,
    ):
        project.write(site.url, frontier=redis.url)
        (others / "others.py").write_text(SHOAL_SPIDER.format(url=their_site.url))
        command = [sys.executable, "-m", "shoal", "run", "others.py", "--frontier", redis.url]
        both = [project.start("-s", "SHOAL_RATE=100/s", "-s", "LOG_LEVEL=INFO") for _ in range(2)]
        worker = subprocess.Popen(command, cwd=others, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            wait_for(site, 100, *both)
            both[0].terminate()
            outputs = [process.communicate(timeout=SECONDS)[0] for process in (*both, worker)]
        finally:
            kill(*both, worker)
        assert [process.returncode for process in (*both, worker)] == [0, 0, 0], outputs
        reasons = [re.findall(r"'finish_reason': '(\w+)'", output) for output in outputs]
        assert reasons == [["shutdown"], ["finished"], []]
        check(project, site, 300, places=("--frontier", redis.url), again=0)
        assert (len(fetched(their_site)), set(fetched(their_site).values())) == (150, {1})
        status = project.shoal("status", "others-1", "--frontier", redis.url)
        assert (status["state"], status["progress"]["done"], status["progress"]["dead"]) == ("finished", 150, 0)
