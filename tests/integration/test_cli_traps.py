"""What a limit kept out: counted, told by `shoal why`, and let in by the command it names."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from command_line import Folder

from shoal.testing.sites.hostile import HostileSite, answer

PAGES = 40
SPIDER = """
from shoal import Item, Spider

class Walk(Spider):
    start = {start!r}
    rate = "unlimited"
    obey_robots = False
    allow_private = True

    def parse(self, page):
        yield Item(key=page.url, title=page.text("title"))
        yield page.follow()
"""


async def shoal(folder: Folder, *arguments: str) -> str:
    return (await asyncio.to_thread(folder.run, *arguments)).stdout


async def why(folder: Folder, url: str) -> dict[str, Any]:
    found: dict[str, Any] = await asyncio.to_thread(folder.json, "why", url)
    return found


async def test_equal_pages_that_were_given_up_can_be_had_after_all(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    async with HostileSite() as site:
        links = "".join(f"<a href=/same/{number}>x</a>" for number in range(PAGES))
        site.pages = {"/": answer(links.encode())} | {f"/same/{number}": answer(b"sold out") for number in range(PAGES)}
        (tmp_path / "walk.py").write_text(SPIDER.format(start=site.url("/")))
        await shoal(folder, "run", "walk.py", "--set", "max_equal_pages=5", "--set", "concurrency=4")
        assert len(site.requests) < PAGES
        last = await why(folder, site.url(f"/same/{PAGES - 1}"))
        assert last["sentence"].startswith(
            "dead after 1 attempt: equal_pages: the last 5 pages like it said nothing new"
        )
        told = await shoal(folder, "why", site.url(f"/same/{PAGES - 1}"))
        assert "shoal dead requeue walk-1 --reason equal_pages\n" in told
        assert "--set max_equal_pages=0" in last["sentence"]
        await shoal(folder, "dead", "requeue", "walk-1", "--reason", "equal_pages")
        await shoal(folder, "run", "walk.py", "--set", "max_equal_pages=0")
        assert len(site.requests) == PAGES + 1
        assert (await why(folder, site.url(f"/same/{PAGES - 1}")))["sentence"] == "done: ok"


async def test_what_a_budget_or_the_facets_kept_out_comes_in_with_the_flag_that_why_names(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    async with HostileSite() as site:
        links = "".join(f"<a href=/product/{number}>x</a>" for number in range(PAGES))
        facets = "".join(f"<a href='/product/0?{name}=1'>x</a>" for name in "abcdef")
        site.pages = {"/": answer((links + facets).encode())}
        (tmp_path / "walk.py").write_text(SPIDER.format(start=site.url("/")))
        kept_out = {
            site.url("/product/10"): ("max_per_shape", "--set max_per_shape=N"),
            site.url("/product/0?f=1"): ("facets", "--set max_facets=N"),
        }
        await shoal(folder, "run", "walk.py", "--set", "max_per_shape=10", "--set", "max_facets=3")
        for url, (reason, flag) in kept_out.items():
            fate = await why(folder, url)
            assert fate["kept_out"] == reason
            assert (
                f"to let in more, run the command that began the crawl again with --again and {flag}"
                in fate["sentence"]
            )
        await shoal(folder, "run", "walk.py", "--again", "--set", "max_per_shape=100", "--set", "max_facets=30")
        for url in kept_out:
            assert (await why(folder, url))["sentence"] == "done: ok"
