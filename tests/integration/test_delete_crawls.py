"""`shoal crawls` and `shoal delete`: what crawls take, what will remove them, and crawls removed on demand."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from command_line import SECONDS, Folder

from shoal.crawl.record import record_of
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.model import Crawl, Heartbeat
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 30
PAGES = 35
ALWAYS = """
from shoal import Item, Request, Spider

class Books(Spider):
    start = [Request("{url}", dedup=False)]
    rate = "unlimited"
    allow_private = True

    def parse(self, page):
        yield from page.follow("article h3 a", self.book)

    def book(self, page):
        yield Item(key=page.url, title=page.text("h1"))
"""


def rows(folder: Path, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(folder / "shoal.db") as db:
        found = db.execute(query).fetchall()
    db.close()
    return found


async def half_delete(path: Path) -> None:
    """A crawl that a killed process has begun to delete."""
    frontier = await SqliteFrontier.open(path)
    await frontier.open_crawl(Crawl(id="large-1", spider="large"))
    await frontier.put("large-1", [make_task(number) for number in range(5000)])
    assert not await frontier.delete_crawl("large-1", seconds=0.0)
    await frontier.close()


async def work_on(path: Path, crawl: str) -> None:
    """A worker's heartbeat, on a crawl that runs again."""
    frontier = await SqliteFrontier.open(path)
    await frontier.put(crawl, [make_task(1)])
    await frontier.beat(Heartbeat(worker="w9", crawl=crawl, host="far", pid=1, version="1", slots=1, machine="far"))
    await frontier.close()


async def drop_keys(path: Path, crawl: str) -> None:
    frontier = await SqliteFrontier.open(path)
    await frontier.drop_keys(crawl)
    await frontier.close()


async def begin_to_learn(path: Path, earlier: str) -> None:
    """A crawl whose process was killed before it had learnt what it skips."""
    frontier = await SqliteFrontier.open(path)
    (crawl,) = await frontier.crawls()
    record = msgspec.structs.replace(record_of(crawl), skips_known=True, known_from=(earlier,))
    await frontier.open_crawl(Crawl(id="books-2", spider="books", settings=msgspec.to_builtins(record)))
    await frontier.close()


async def delete(path: Path, crawl: str) -> None:
    frontier = await SqliteFrontier.open(path)
    await frontier.delete_crawl(crawl)
    await frontier.close()


def test_crawls_are_listed_with_their_bytes_and_their_end(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url)
    folder.run("run", "books.py")
    folder.run("run", "books.py", "--again", "--set", "crawl_ttl=1d")
    table = folder.run("crawls").stdout
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [["books-2", "finished"], ["books-1", "finished"]]
    # By how long the commands took, a day is whole or lacks a moment.
    assert re.search(r"kept \(newest of its spider\); URLs forgotten in (13 d 23 h|14 d 00 h)\n", table)
    assert re.search(r"removed in (23 h 59 m|1 d 00 h) \(crawl_ttl = 1d\)\n", table)
    newest, oldest = folder.json("crawls")
    assert (newest["crawl"], newest["pages"], newest["left"], newest["is_estimate"]) == ("books-2", PAGES, 0, True)
    assert 2_000 < newest["bytes"] < 200_000
    assert (oldest["removed_by"], oldest["removed_at"]) == ("crawl_ttl = 1d", oldest["finished"] + 86_400)
    shown = folder.on_terminal("crawls", columns=80)
    assert "no room for" not in shown
    heading = next(line for line in shown.splitlines() if "state" in line)
    assert re.sub(r"\x1b\[[0-9;]*m", "", heading).split()[:6] == ["crawl", "state", "age", "pages", "urls", "bytes"]


def test_a_deleted_crawl_leaves_its_items_log_and_pages_unless_they_are_asked_for(
    folder: Folder, site: SiteProcess
) -> None:
    folder.spider(site.url)
    folder.run("run", "books.py", "--archive", "pages")
    folder.run("run", "books.py", "--again", "--archive", "pages", "--set", "conditional_requests=false")
    refused = folder.run("delete", "books-1", code=2).stderr
    assert "nothing was deleted: nobody can be asked here; --yes deletes 1 crawl" in refused
    told = folder.run("delete", "books-1", "--yes")
    assert f"books-1 (finished): {PAGES} pages, 0 left, " in told.stderr
    assert told.stdout == "1 crawl deleted\n"
    assert [crawl["crawl"] for crawl in folder.json("crawls")] == ["books-2"]
    assert rows(folder.path, "SELECT count(*) FROM fetch WHERE crawl = 'books-1'")[0][0] == PAGES
    captures = sorted(path.name for path in (folder.path / "pages" / "captures").iterdir())
    assert captures == ["books-1", "books-2"]
    (document,) = folder.json("delete", "books-*", "--items", "--log", "--pages", "--yes")
    assert (document["items"], document["log"]) == (PRODUCTS, True)
    assert document["captures"] > PRODUCTS
    assert rows(folder.path, "SELECT DISTINCT crawl FROM fetch") == [("books-1",)]
    assert rows(folder.path, "SELECT count(*) FROM item") == [(0,)]
    assert [path.name for path in (folder.path / "pages" / "captures").iterdir()] == ["books-1"]
    # Its bodies are those of the crawl whose captures are left.
    assert any((folder.path / "pages" / "bodies").rglob("*.zst"))
    assert folder.json("crawls") == []


def test_items_log_and_pages_are_not_looked_for_where_the_crawl_has_none(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url)
    folder.run("run", "books.py", "--archive", "pages")
    shutil.copytree(folder.path / "pages", folder.path / "other", ignore=shutil.ignore_patterns("captures", "bodies"))
    sqlite3.connect(folder.path / "empty.db").close()
    for flag in ("--items", "--log"):
        line = folder.refusal("delete", "books-1", flag, "--store", "empty.db", "--yes")
        assert f"the items of books-1 lie in {folder.path}/shoal.db, and empty.db has none of them: leave out" in line
    refused = folder.refusal("delete", "books-1", "--pages", "--archive", "other", "--yes")
    assert f"lie in {folder.path}/pages, and other has none of them: leave out --archive and SHOAL_ARCHIVE" in refused
    assert len(folder.json("crawls")) == 1


def test_an_archive_that_refuses_keeps_the_whole_crawl(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url)
    folder.run("run", "books.py", "--archive", "pages")
    folder.run("run", "books.py", "--again", "--archive", "pages", "--max-pages", "3")
    refused = folder.run("delete", "books-1", "--items", "--log", "--pages", "--yes", code=2).stderr
    assert "books-2 has kept pages there within the last hour" in refused
    assert rows(folder.path, "SELECT count(*) FROM item, (SELECT 1 FROM fetch WHERE crawl = 'books-1' LIMIT 1)") == [
        (PRODUCTS,)
    ]


def test_entries_of_an_inbox_go_with_their_crawl_and_that_is_said(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url)
    folder.run("run", "books.py")
    asyncio.run(drop_keys(folder.path / "shoal.db", "books-1"))
    (folder.path / "shoal-inbox" / "books-1").mkdir(parents=True)
    (folder.path / "shoal-inbox" / "books-1" / "more.txt").write_text(f"{site.url}catalogue/new.html\n")
    # A crawl that has forgotten its URLs does not go on, and is not said to.
    assert "its URL keys were dropped (known_ttl)" in folder.refusal("run", "books.py")
    told = folder.run("delete", "books-1", "--yes").stderr
    assert "in the frontier; 1 entry in its inbox that nobody has taken\n" in told


def test_what_is_deleted_while_workers_work_on_it_stays_deleted(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url, first="import time; time.sleep(0.2)")
    with folder.start("run", "books.py") as run:
        folder.wait_for_pages(3)
        folder.run("delete", "books-1", "--items", "--log", "--yes")
        run.communicate(timeout=SECONDS)
    assert rows(folder.path, "SELECT (SELECT count(*) FROM item), (SELECT count(*) FROM fetch)") == [(0, 0)]


def test_a_run_whose_crawl_is_deleted_says_so(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url, rate="4/s")
    with folder.start("run", "books.py") as run:
        folder.wait_for_pages(1)
        folder.run("delete", "books-1", "--yes")
        _, told = run.communicate(timeout=SECONDS)
    assert run.returncode == 2
    assert "shoal: books-1 was deleted during this run: what the run stored is kept\n" in told


def test_what_a_killed_process_has_half_deleted_is_shown_and_finished(folder: Folder) -> None:
    asyncio.run(half_delete(folder.path / "shoal.db"))
    assert "large-1 is half deleted: `shoal delete large-1` or the next process" in folder.run("crawls").stderr
    line = folder.refusal("delete", "large-1", "--items", "--yes")
    assert "large-1 is half deleted: where its items, log and pages are is no longer known; leave out" in line
    assert "large-1: the rest of it" in folder.run("delete", "large-1", "--yes").stderr
    assert rows(folder.path, "SELECT count(*) FROM task") == [(0,)]
    assert "there is no crawl 'large-1'; `shoal crawls` lists them" in folder.refusal("delete", "large-1", "--yes")


def test_a_crawl_on_which_others_work_is_not_deleted_by_mistake(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url)
    folder.run("run", "books.py")
    asyncio.run(work_on(folder.path / "shoal.db", "books-1"))
    with pytest.raises(AssertionError, match=r"Delete 1 crawl\? This cannot be undone[^$]*nothing was deleted"):
        folder.on_terminal("delete", "books-1", keys=b"n\n")
    with pytest.raises(AssertionError, match="books-1 is unchanged"):
        folder.on_terminal("delete", "books-1", keys=b"y\nn\n", columns=200)
    assert [(crawl["crawl"], crawl["state"]) for crawl in folder.json("crawls")] == [("books-1", "running")]
    shown = folder.on_terminal("delete", "books-1", keys=b"y\ny\n", columns=200)
    assert "books-1 is run right now by 1 worker (w9 on far). Delete it?" in shown
    assert folder.json("crawls") == []


def test_a_slip_in_a_name_is_named_and_nothing_is_deleted(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url)
    folder.run("run", "books.py")
    assert "there is no crawl 'book-1'; did you mean books-1?" in folder.refusal("delete", "books-1", "book-1", "--yes")
    assert len(folder.json("crawls")) == 1


@pytest.mark.parametrize("ends", [False, True])
def test_a_crawl_skips_what_an_earlier_one_has_done(folder: Folder, site: SiteProcess, *, ends: bool) -> None:
    (folder.path / "books.py").write_text(ALWAYS.replace("{url}", site.url))
    folder.run("run", "books.py", *(() if ends else ("--max-pages", "11")))
    before = Counter(hit.path for hit in site.hits())
    told = folder.run("run", "books.py", "--again", "--skip-known", "-o", "new.jsonl")
    fetched = Counter(hit.path for hit in site.hits()) - before
    assert "of books-1 count as known" in told.stderr
    assert fetched["/"] == 1
    assert not [path for path in fetched if path in before and path not in ("/", "/robots.txt")]
    # Its record says so for the next one, and nothing is learnt twice.
    assert folder.run("run", "books.py").stderr.count("count as known") == 0


def test_a_fresh_crawl_skips_nothing_of_a_stopped_one_that_it_discards(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url)
    folder.run("run", "books.py", "--max-items", "3")
    told = folder.run("run", "books.py", "--fresh", "--skip-known").stderr
    assert "--skip-known: there is no earlier crawl of this spider here: everything is fetched" in told
    assert [(crawl["crawl"], crawl["pages"]) for crawl in folder.json("crawls")] == [("books-2", PAGES)]


def test_a_crawl_that_another_one_still_has_to_learn_from_goes_only_with_it(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url)
    folder.run("run", "books.py")
    asyncio.run(begin_to_learn(folder.path / "shoal.db", "books-1"))
    assert "books-2 has just begun and still has to copy" in folder.refusal("delete", "books-1", "--yes")
    asyncio.run(delete(folder.path / "shoal.db", "books-1"))
    refused = folder.run("run", "books.py", code=2).stderr
    assert "books-2 was begun with --skip-known, and the URLs to skip are lost: there is no crawl 'books-1'" in refused
    assert "; --fresh begins a crawl in its place" in refused


def test_skipping_what_is_forgotten_is_refused(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url)
    folder.run("run", "books.py")
    asyncio.run(drop_keys(folder.path / "shoal.db", "books-1"))
    line = folder.refusal("run", "books.py", "--again", "--skip-known")
    assert "--skip-known: the URLs of no earlier crawl are known: books-1 (its URL keys were dropped" in line
    assert len(folder.json("crawls")) == 1
    refused = folder.refusal("add", "books-1", f"{site.url}catalogue/new.html")
    assert "crawl 'books-1' is finished and its URL keys were dropped (known_ttl)" in refused
    assert "nothing is fetched" in folder.run("run", "books.py").stderr
    hits = len(site.hits())
    folder.run("run", "books.py", "--again")
    assert len(site.hits()) > hits
