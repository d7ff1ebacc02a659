"""One page in several spellings, from the links of a site to the commands that look a page up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from command_line import Folder

from shoal.testing.sites.loopback import LoopbackServer, Reply, Request, reply

SPIDER = """
from shoal import Item, Spider

class Walk(Spider):
    start = {url!r}
    rate = "unlimited"
    obey_robots = False
    allow_private = True
    settings = {{"same_page": ["trailing_slash", "index"]}}

    def parse(self, page):
        yield Item(key=page.url, title=page.text("h1"))
        yield page.follow("a")
"""
HREFS = (
    "/a",
    "/a/",
    "/b/index.html",
    "/b",
    "/s?f[x]=1+2",
    "/s?f%5Bx%5D=1%202",
    "/p|q",
    "/p%7Cq",
    "/t?utm_source=m",
    "/loop",
)
# A site that prefers a slash at the end, wants no tracking, and has one page that leads round in a circle.
REDIRECTS = {"/a": "/a/", "/t?utm_source=m": "/t", "/loop": "/loop/", "/loop/": "/loop"}


def answer(request: Request) -> Reply:
    if request.path in REDIRECTS:
        return reply("", status=301, headers={"Location": REDIRECTS[request.path]})
    return reply(f"<h1>{request.path}</h1>" + "".join(f"<a href='{href}'>x</a>" for href in HREFS))


@asynccontextmanager
async def crawled(folder: Folder) -> AsyncIterator[tuple[str, Counter[str]]]:
    """The site after a crawl: its URL, and how often each path was asked for."""
    server = LoopbackServer(answer=answer)
    await server.start()
    try:
        url = f"http://127.0.0.1:{server.port}"
        (folder.path / "walk.py").write_text(SPIDER.format(url=url + "/"))
        await asyncio.to_thread(folder.run, "run", "walk.py", "--archive", "pages", "-o", "items.jsonl")
        yield url, Counter(hit.path for hit in server.requests)
    finally:
        await server.close()


@pytest.mark.full
async def test_each_page_is_handled_once_in_the_spelling_that_the_site_prefers(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    async with crawled(folder) as (url, asked):
        loop = {path: asked.pop(path) for path in ("/loop", "/loop/")}
        assert asked == dict.fromkeys(
            ["/", "/a", "/a/", "/b/index.html", "/s?f[x]=1+2", "/p|q", "/t?utm_source=m", "/t"], 1
        )
        assert sum(loop.values()) <= 4
        handled = [line.split('"_url":')[1] for line in (tmp_path / "items.jsonl").read_text().splitlines()]
        assert len(handled) == 6
        states = [
            (await asyncio.to_thread(folder.json, "why", url + path))["fetch"]["outcome"]
            for path in ("/a", "/a/", "/b", "/b/", "/s?f%5Bx%5D=1%202", "/p%7Cq", "/t", "/t?utm_source=m")
        ]
        assert states == ["redirected", "ok", "ok", "ok", "ok", "ok", "ok", "redirected"]
        page = await asyncio.to_thread(folder.run, "page", f"{url}/a/", "--archive", "pages")
        assert page.stdout.startswith("<h1>/a/</h1>")
        (letter,) = await asyncio.to_thread(folder.json, "dead", "list")
        assert letter["reason"] == "redirect_loop: the page redirects to itself"
        assert await asyncio.to_thread(folder.json, "dead", "list", "--url", letter["url"]) == [letter]
