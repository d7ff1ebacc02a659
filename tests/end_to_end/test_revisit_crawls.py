"""Crawls that visit their pages again and again, over kills, at the pace of the site."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from crawl_commands import Commands, ended

from shoal.testing.sites.loopback import busiest_window
from shoal.testing.sites.site_process import SiteProcess, site_process
from shoal.testing.waiting import eventually

PAGES, RATE = 12, 40
SPIDER = """
from shoal import Item, Spider, handler


class Graph(Spider):
    name = "graph"
    start = "{url}"
    rate = "40/s"
    obey_robots = False
    allow_private = True
    revisit = "1s"

    {mark}
    def parse(self, page):
        yield Item(key=page.url)
        yield page.follow("a")
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SiteProcess]:
    with site_process("--graph", str(PAGES), log=tmp_path / "hits.jsonl") as site:
        yield site


@pytest.fixture
def commands(frontier: str, tmp_path: Path, site: SiteProcess) -> Iterator[Commands]:
    folder = tmp_path / "crawl"
    folder.mkdir()
    (folder / "graph.py").write_text(SPIDER.format(url=site.urls[0], mark=""))
    with contextlib.closing(Commands(folder, frontier)) as commands:
        yield commands


def visits(site: SiteProcess) -> Counter[str]:
    return Counter(hit.path for hit in site.hits())


async def test_every_page_is_visited_again_also_after_a_kill_and_each_item_is_there_once(
    commands: Commands, site: SiteProcess, tmp_path: Path
) -> None:
    def all_visited(times: int) -> bool:
        seen = visits(site)
        return len(seen) == PAGES and min(seen.values()) >= times

    run, log = commands.start("run", "graph.py")
    await eventually(lambda: all_visited(2), seconds=60)
    run.kill()
    run.wait()
    more = max(visits(site).values()) + 2
    run, log = commands.start("run", "graph.py")
    await eventually(lambda: all_visited(more), seconds=90)
    status = commands.output("status", "graph-1")
    assert (status["state"], status["progress"]["done"], status["known"]) == ("running", 0, PAGES)
    assert status["progress"]["notes"]["visits"] >= 2 * PAGES
    shown = commands.done("status", "graph-1")
    assert " visits made, " in shown
    assert "0 done" not in shown
    run.terminate()
    assert await ended(run) in (0, 130, 143), log.read_text()
    assert busiest_window(site.hits(), seconds=1.0) <= RATE + 1
    with contextlib.closing(sqlite3.connect(tmp_path / "crawl" / "results.db")) as db:
        assert db.execute("SELECT count(*), max(version) FROM items").fetchone() == (PAGES, 1)


@pytest.mark.full
async def test_pages_that_are_handled_apart_go_back_to_the_workers_that_fetch(
    commands: Commands, site: SiteProcess, tmp_path: Path
) -> None:
    folder = tmp_path / "crawl"
    (folder / "graph.py").write_text(SPIDER.format(url=site.urls[0], mark='@handler(kind="parse")'))
    run, log = commands.start("run", "graph.py", "--kinds", "http", "--archive", "pages")
    parser, said = commands.start("worker", "graph.py", "--kinds", "parse")
    await eventually(lambda: len(visits(site)) == PAGES and min(visits(site).values()) >= 3, seconds=90)
    assert (run.poll(), parser.poll()) == (None, None), log.read_text() + said.read_text()
    with contextlib.closing(sqlite3.connect(folder / "results.db")) as db:
        workers = dict(db.execute("SELECT outcome, worker FROM earlier_fetches").fetchall())
    assert set(workers) == {"ok", "handed_over"}
    assert workers["ok"] != workers["handed_over"]
