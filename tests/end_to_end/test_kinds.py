"""Crawls whose pages are of several kinds: each is done by workers of its kind, at one pace for the host."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from crawl_commands import Commands, ended

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


STAGED = """
from shoal import Item, Spider, handler


class Graph(Spider):
    name = "graph"
    start = "{url}"
    rate = "40/s"
    per_host = 2
    allow_private = True

    @handler(kind="parse")
    def parse(self, page):
        yield Item(key=page.url, number=page.text("h1"), meta=page.meta, type=page.headers.get("content-type"))
        yield page.follow("a", meta={{"from": page.url}})
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SiteProcess]:
    with site_process("--graph", str(PAGES), log=tmp_path / "hits.jsonl") as site:
        yield site


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


async def test_a_handler_of_another_kind_runs_on_the_archived_page(
    commands: Commands, site: SiteProcess, tmp_path: Path
) -> None:
    folder = tmp_path / "crawl"
    (folder / "graph.py").write_text(STAGED.format(url=site.urls[0]))
    run, log = commands.start("run", "graph.py", "--kinds", "http", "--archive", "pages")
    lacking = "of the kind parse waits, and no worker does that kind: `shoal worker graph.py --kinds parse` does"
    await eventually(lambda: lacking in log.read_text(), seconds=30)
    assert len(site.hits()) == 2  # robots.txt and the start URL
    waits = "fetched: its page waits for its handler parse, which runs in workers of the kind parse"
    assert waits in json.dumps(commands.output("why", site.urls[0]))
    parser, said = commands.start("worker", "graph.py", "--kinds", "parse", "--burst")
    assert await ended(parser) == 0, said.read_text()
    assert await ended(run) == 0, log.read_text()
    assert len(site.hits()) == PAGES + 1
    with contextlib.closing(sqlite3.connect(folder / "results.db")) as db:
        items = [json.loads(data) for (data,) in db.execute("SELECT data FROM items")]
        latest = db.execute("SELECT outcome, worker, archived, status FROM fetches").fetchall()
        earlier = db.execute("SELECT outcome, worker, archived FROM earlier_fetches").fetchall()
    assert {int(item["number"]) for item in items} == set(range(PAGES))
    assert all(item["type"].startswith("text/html") for item in items)
    assert sum("from" in (item["meta"] or {}) for item in items) == PAGES - 1
    assert {(outcome, status) for outcome, _, _, status in latest} == {("ok", 200)}
    assert {outcome for outcome, _, _ in earlier} == {"handed_over"}
    assert (len(latest), len(earlier)) == (PAGES, PAGES)
    assert all(name for *_, name, _ in latest)
    assert not {worker for _, worker, _, _ in latest} & {worker for _, worker, _ in earlier}
    status = commands.output("status", "graph-1")
    assert (status["progress"]["done"], status["progress"]["retried"], status["known"]) == (PAGES, 0, PAGES)
    assert "done: ok" in json.dumps(commands.output("why", site.urls[0]))
    page = commands.done("page", site.urls[0])
    assert "<h1>" in page


@pytest.mark.full
async def test_stages_that_are_apart_need_an_archive_and_a_run_that_does_all_needs_none(
    commands: Commands, site: SiteProcess, tmp_path: Path
) -> None:
    (tmp_path / "crawl" / "graph.py").write_text(STAGED.format(url=site.urls[0]))
    run, log = commands.start("run", "graph.py", "--kinds", "http")
    assert await ended(run) == 2
    assert "the handler parse runs in workers of the kind parse" in log.read_text()
    assert "give --archive, or do all kinds here with --kinds http,parse" in log.read_text()
    assert site.hits() == []
    run, log = commands.start("run", "graph.py")
    assert await ended(run) == 0, log.read_text()
    assert commands.output("status", "graph-1")["items"] == PAGES


@pytest.mark.full
async def test_a_handler_that_fails_in_a_later_stage_makes_a_dead_letter_and_fetches_nothing_again(
    commands: Commands, site: SiteProcess, tmp_path: Path
) -> None:
    failing = STAGED.replace("yield Item(", "raise ValueError(page.url)\n        yield Item(")
    (tmp_path / "crawl" / "graph.py").write_text(failing.format(url=site.urls[0]))
    options = ["--set", "max_attempts=2", "--set", "retry_seconds=0.1", "--archive", "pages"]
    run, _ = commands.start("run", "graph.py", "--kinds", "http", *options)
    parser, _ = commands.start("worker", "graph.py", "--kinds", "parse")
    assert await ended(run) == 1
    parser.terminate()
    assert await ended(parser) == 0
    assert len(site.hits()) == 2
    host = site.urls[0].split("/")[2]
    letters = commands.done("dead", "list", "--host", f"{host} stage parse", "--json", has_store=False)
    assert "handler: ValueError" in letters
    assert f'"{site.urls[0]}"' in letters
