"""A crawl that visits its pages again, on a site that changes: unchanged pages cost no body, items go and come back."""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from changing_site import Site, stored
from crawl_commands import Commands, ended

from shoal.testing.waiting import eventually

pytestmark = pytest.mark.full

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
        await eventually(
            lambda: re.search("2 items of shop gone from the site|1 item of shop gone", log.read_text()), seconds=60
        )
        changes = {one["key"]: one["change"] for one in _diff(commands, since=seen)}
        assert changes == {"pear": "gone", "plum": "gone"}
        site.write("one.html", "<article>plum</article>")
        await eventually(lambda: stored(folder)["plum"] == (False, 1), seconds=60)
        assert run.poll() is None
        assert {one["change"] for one in _diff(commands, since=began - 5)} == {"new"}
        status = commands.output("status", "shop-1")
        assert status["progress"]["outcomes"]["not_modified"] >= 6


async def test_items_go_also_where_a_worker_and_a_serving_process_go_on_without_a_run(
    site: Site, tmp_path: Path
) -> None:
    folder = tmp_path / "crawl"
    folder.mkdir()
    with site.serving() as url, contextlib.closing(Commands(folder, str(tmp_path / "shoal.db"))) as commands:
        (folder / "shop.py").write_text(SPIDER.format(url=url))
        run, _ = commands.start("run", "shop.py")
        await eventually(lambda: site.answers["/two.html", 304] and site.answers["/one.html", 304], seconds=60)
        run.terminate()
        await ended(run)
        site.write("two.html", "<article>apple</article>")
        commands.start("worker", "shop.py")
        _, log = commands.start("serve", "--port", "0")
        left = {"apple": (False, 1), "pear": (True, 1), "plum": (False, 1)}
        await eventually(lambda: stored(folder) == left, seconds=60)
        await eventually(lambda: "1 item of shop gone from the site" in log.read_text(), seconds=60)


def _diff(commands: Commands, *, since: float) -> list[dict[str, Any]]:
    moment = datetime.datetime.fromtimestamp(since, tz=datetime.UTC).isoformat()
    differences: list[dict[str, Any]] = commands.output("diff", "shop", "--since", moment)["differences"]
    return differences


async def test_a_page_that_its_sitemap_says_changed_is_visited_soon_as_the_same_task_and_others_are_not(
    site: Site, tmp_path: Path
) -> None:
    folder = tmp_path / "crawl"
    folder.mkdir()
    long_ago = datetime.datetime.fromtimestamp(time.time() - 86_400, tz=datetime.UTC)

    def list_pages(*, changed: str = "") -> None:
        now = datetime.datetime.now(tz=datetime.UTC)
        times = {name: now if name == changed else long_ago for name in ("one.html", "two.html")}
        urls = [f"<url><loc>{url}{name}</loc><lastmod>{at.isoformat()}</lastmod></url>" for name, at in times.items()]
        site.write("sitemap.xml", f"<urlset>{''.join(urls)}</urlset>")

    def is_seen() -> bool:
        # Again and again: the sitemap may be read between the moment that it names and the moment in which it is there.
        list_pages(changed="two.html")
        return "fig" in stored(folder)

    with site.serving() as url, contextlib.closing(Commands(folder, str(tmp_path / "shoal.db"))) as commands:
        spider = SPIDER.replace('start = "{url}"', 'start = Sitemap("{url}sitemap.xml", revisit="1s")')
        spider = spider.replace("import Item", "import Item, Sitemap").replace('revisit = "1s"', 'revisit = "24h"')
        (folder / "shop.py").write_text(spider.format(url=url))
        list_pages()
        run, _ = commands.start("run", "shop.py")
        await eventually(lambda: site.answers["/sitemap.xml", 304] >= 2, seconds=60)
        assert [site.answers[f"/{name}", 200] for name in ("one.html", "two.html")] == [1, 1]
        site.write("one.html", "<article>kiwi</article>")
        site.write("two.html", "<article>fig</article>")
        await eventually(is_seen, seconds=60)
        assert site.answers["/one.html", 200] == 1
        assert run.poll() is None
        status = commands.output("status", "shop-1")
        assert (status["known"], status["progress"]["done"]) == (3, 0)


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
