"""A crawl that visits its pages again, on a site that changes: unchanged pages cost no body, items go and come back."""

from __future__ import annotations

import contextlib
import datetime
import json
import time
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
    rate = "20/s"
    obey_robots = False
    allow_private = True
    revisit = "1s"

    def parse(self, page):
        for article in page.css("article"):
            yield Item(key=article.text(), of="fruit")
        yield page.follow("a")
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path / "site")
    site.write("index.html", "<a href=two.html>2</a><a href=one.html>1</a>")
    site.write("two.html", "<article>apple</article><article>pear</article>")
    site.write("one.html", "<article>plum</article>")
    return site


async def test_unchanged_pages_cost_no_body_and_items_that_left_are_gone_until_they_are_back(
    site: Site, tmp_path: Path
) -> None:
    folder = tmp_path / "crawl"
    folder.mkdir()
    with site.serving() as url, contextlib.closing(Commands(folder, str(tmp_path / "shoal.db"))) as commands:
        (folder / "shop.py").write_text(SPIDER.format(url=url))
        began = time.time()
        run, log = commands.start("run", "shop.py")
        await eventually(
            lambda: min(site.answers[f"/{name}", 304] for name in ("", "two.html", "one.html")) >= 2, seconds=60
        )
        assert [site.answers[f"/{name}", 200] for name in ("", "two.html", "one.html")] == [1, 1, 1]
        assert stored(folder) == {"apple": (False, 1), "pear": (False, 1), "plum": (False, 1)}
        seen = time.time()
        site.write("two.html", "<article>apple</article>")
        site.remove("one.html")
        left = {"apple": (False, 1), "pear": (True, 1), "plum": (True, 1)}
        await eventually(lambda: stored(folder) == left, seconds=60)
        assert "2 items of shop gone from the site" in log.read_text() or "1 item of shop gone" in log.read_text()
        changes = {one["key"]: one["change"] for one in _diff(commands, since=seen)}
        assert changes == {"pear": "gone", "plum": "gone"}
        site.write("one.html", "<article>plum</article>")
        await eventually(lambda: stored(folder)["plum"] == (False, 1), seconds=60)
        assert run.poll() is None
        assert {one["change"] for one in _diff(commands, since=began - 5)} == {"new"}
        status = commands.output("status", "shop-1")
        assert status["progress"]["outcomes"]["not_modified"] >= 6


def _diff(commands: Commands, *, since: float) -> list[dict[str, Any]]:
    moment = datetime.datetime.fromtimestamp(since, tz=datetime.UTC).isoformat()
    differences: list[dict[str, Any]] = commands.output("diff", "shop", "--since", moment)["differences"]
    return differences


async def test_a_new_crawl_of_the_whole_site_marks_what_it_did_not_see_and_one_with_a_gap_says_why_not(
    site: Site, tmp_path: Path
) -> None:
    folder = tmp_path / "crawl"
    folder.mkdir()

    async def run(*arguments: str) -> str:
        process, log = commands.start("run", "shop.py", "--set", "revisit=", "--set", "mark_gone=true", *arguments)
        await ended(process)
        return log.read_text()

    with site.serving() as url, contextlib.closing(Commands(folder, str(tmp_path / "shoal.db"))) as commands:
        (folder / "shop.py").write_text(SPIDER.format(url=url))
        assert "0 items that shop-1 did not see marked as gone" in await run()
        site.write("two.html", "<article>apple</article>")
        said = await run("--again", "--set", "max_pages=2")
        assert "items that shop-2 did not see are not marked as gone: " in said
        assert "kept out by max_pages" in said
        assert not any(gone for gone, _ in stored(folder).values())
        assert "1 item that shop-3 did not see marked as gone" in await run("--again")
        assert stored(folder) == {"apple": (False, 1), "pear": (True, 1), "plum": (False, 1)}


async def test_a_sink_gets_an_item_as_new_as_gone_and_as_new_again(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "crawl"
    folder.mkdir()
    with site.serving() as url, contextlib.closing(Commands(folder, str(tmp_path / "shoal.db"))) as commands:
        (folder / "shop.py").write_text(SPIDER.format(url=url))

        async def run() -> None:
            settings = ("--set", "revisit=", "--set", "mark_gone=true")
            process, log = commands.start("run", "shop.py", "--again", "--sink", "out.jsonl", *settings)
            assert await ended(process) == 0, log.read_text()

        await run()
        site.write("two.html", "<article>apple</article>")
        await run()
        site.write("two.html", "<article>apple</article><article>pear</article>")
        await run()
    sent = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    pear = [(one["change"], one["version"], one["item"]) for one in sent if one["key"] == "pear"]
    assert pear == [("new", 1, {"of": "fruit"}), ("gone", 2, {"of": "fruit"}), ("new", 3, {"of": "fruit"})]
    assert [one["change"] for one in sent if one["key"] != "pear"] == ["new", "new"]
