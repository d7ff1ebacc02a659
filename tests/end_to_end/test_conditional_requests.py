"""A new crawl of a spider that archives its pages: those that have not changed cost no body, and give all they gave."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from changing_site import Site, stored
from crawl_commands import Commands, ended

from shoal.testing.waiting import eventually

SPIDER = """
from shoal import Item, Spider


class Shop(Spider):
    name = "shop"
    start = "{url}"
    rate = "{rate}"
    obey_robots = False
    allow_private = True
    mark_gone = True

    def parse(self, page):
        for article in page.css("article"):
            name, _, price = article.text().partition(" ")
            yield Item(key=name, price=price)
        yield page.follow("a")
"""
PAGES = {
    "index.html": "<a href=two.html>2</a><a href=one.html>1</a>",
    "one.html": "<article>plum 1</article><a href=three.html>3</a>",
    "two.html": "<article>apple 1</article><article>pear 1</article>",
    "three.html": "<article>fig 1</article>",
}
PATHS = ("/", "/one.html", "/two.html", "/three.html")


class Shop:
    """A spider in a folder, its site and its commands."""

    def __init__(self, folder: Path, site: Site, commands: Commands) -> None:
        self.folder = folder
        self.site = site
        self.commands = commands

    async def run(self, *arguments: str) -> str:
        process, log = self.commands.start("run", "shop.py", "--archive", "pages", *arguments)
        assert await ended(process) == 0, log.read_text()
        return log.read_text()

    def outcomes(self, crawl: str) -> dict[str, int]:
        outcomes: dict[str, int] = self.commands.output("status", crawl)["progress"]["outcomes"]
        return outcomes

    def log(self, crawl: str, page: str) -> dict[str, Any]:
        """The line of a page in the fetch log."""
        with contextlib.closing(sqlite3.connect(self.folder / "results.db")) as db:
            db.row_factory = sqlite3.Row
            rows = db.execute("SELECT * FROM fetch WHERE crawl = ? AND url LIKE ?", (crawl, f"%/{page}")).fetchall()
        return dict(rows[0])


@contextlib.contextmanager
def opened(tmp_path: Path, pages: dict[str, str], *, rate: str = "50/s") -> Iterator[Shop]:
    folder = tmp_path / "crawl"
    folder.mkdir()
    site = Site(tmp_path / "site")
    for name, text in pages.items():
        site.write(name, text)
    with site.serving() as url, contextlib.closing(Commands(folder, str(tmp_path / "shoal.db"))) as commands:
        (folder / "shop.py").write_text(SPIDER.format(url=url, rate=rate))
        yield Shop(folder, site, commands)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with opened(tmp_path, PAGES) as shop:
        yield shop


async def test_a_new_crawl_asks_whether_its_pages_have_changed_and_gives_the_same_items_and_links(shop: Shop) -> None:
    await shop.run("--sink", "out.jsonl")
    shop.site.write("two.html", "<article>apple 2</article>")
    shop.site.answers.clear()
    said = await shop.run("--again", "--sink", "out.jsonl")
    assert shop.site.answers == {("/", 304): 1, ("/one.html", 304): 1, ("/three.html", 304): 1, ("/two.html", 200): 1}
    assert shop.outcomes("shop-2") == {"ok": 1, "not_modified": 3}
    assert stored(shop.folder) == {"plum": (False, 1), "apple": (False, 2), "pear": (True, 1), "fig": (False, 1)}
    assert "1 item that shop-2 did not see marked as gone" in said
    changes = [json.loads(line) for line in (shop.folder / "out.jsonl").read_text().splitlines()]
    assert [(one["key"], one["change"]) for one in changes[4:]] == [("apple", "changed"), ("pear", "gone")]
    line = shop.log("shop-2", "one.html")
    assert (line["status"], line["size"], line["outcome"]) == (304, 0, "not_modified")
    assert "it has not changed since it was last fetched (304)" in shop.commands.done("why", line["url"])


@pytest.mark.full
async def test_later_crawls_ask_by_what_the_one_before_knows_unless_they_are_told_not_to(shop: Shop) -> None:
    await shop.run()
    await shop.run("--again")
    shop.site.answers.clear()
    await shop.run("--again")
    assert shop.site.answers == {(path, 304): 1 for path in PATHS}
    assert shop.outcomes("shop-3") == {"not_modified": 4}
    assert stored(shop.folder) == dict.fromkeys(("plum", "apple", "pear", "fig"), (False, 1))
    # Each crawl's part of the archive is whole: a changed handler may run on all its pages.
    assert "pages  4\n" in shop.commands.done("replay", "shop.py", "--archive", "pages")
    shop.site.answers.clear()
    await shop.run("--again", "--set", "conditional_requests=false")
    assert shop.site.answers == {(path, 200): 1 for path in PATHS}


@pytest.mark.full
async def test_a_page_that_is_in_the_archive_no_more_is_fetched_in_full(shop: Shop) -> None:
    await shop.run()
    name = shop.log("shop-1", "one.html")["content_hash"]
    (shop.folder / "pages" / "bodies" / name[:2] / f"{name}.zst").unlink()
    shop.site.answers.clear()
    await shop.run("--again")
    assert shop.site.answers == {**{(path, 304): 1 for path in PATHS}, ("/one.html", 200): 1}
    assert shop.outcomes("shop-2") == {"ok": 1, "not_modified": 3}
    assert stored(shop.folder) == dict.fromkeys(("plum", "apple", "pear", "fig"), (False, 1))


@pytest.mark.full
async def test_a_worker_that_is_killed_amid_unchanged_pages_loses_none(tmp_path: Path) -> None:
    names = [f"{number}.html" for number in range(40)]
    links = "".join(f"<a href={name}>{name}</a>" for name in names)
    pages = {"index.html": links, **{name: f"<article>item-{name} 1</article>" for name in names}}
    with opened(tmp_path, pages, rate="unlimited") as shop:
        await shop.run()
        shop.site.answers.clear()
        shop.site.most = 10
        process, log = shop.commands.start("run", "shop.py", "--archive", "pages", "--again", "--workers", "2")
        await eventually(lambda: shop.site.answers.total() >= 10, seconds=60)
        # Some pages are done, or on their way to the store; others are in the hands of the workers.
        await eventually(lambda: len(shop.commands.output("status", "shop-2")["workers"]) == 2, seconds=60)
        os.kill(shop.commands.output("status", "shop-2")["workers"][0]["pid"], signal.SIGKILL)
        shop.site.is_free.set()
        assert await ended(process) == 0, log.read_text()
        assert shop.outcomes("shop-2") == {"not_modified": 41}
        assert stored(shop.folder) == {f"item-{name}": (False, 1) for name in names}
        assert all(shop.site.answers[f"/{name}", 304] for name in names)
