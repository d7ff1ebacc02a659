"""Old charsets and broken sitemaps, from the wire to what people see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from command_line import Folder

from shoal.testing.sites.loopback import LoopbackServer, Reply, Request, reply

SPIDER = """
from shoal import Item, Request, Sitemap, Spider

class Walk(Spider):
    start = {start}
    rate = "unlimited"
    obey_robots = False
    allow_private = True

    def parse(self, page):
        yield Item(key=page.url, title=page.text("title"))
        yield page.follow("a.bulk")
        for request in page.follow("a.each"):
            yield request
        if page.attr("a.own", "href"):
            yield Request(page.attr("a.own", "href"))
"""
LINKS = "<a class=bulk href='?q=日本'></a><a class=each href='/道?q=語'></a><a class=own href='?q=本'></a>"


@asynccontextmanager
async def serving(answer: Callable[[Request], Reply]) -> AsyncIterator[LoopbackServer]:
    server = LoopbackServer(answer=answer)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def test_a_page_in_shift_jis_is_read_and_asked_in_its_charset(tmp_path: Path) -> None:
    head = "<html><head>" + "<link href=/a.css>" * 100 + "<meta charset=shift_jis><title>表示①</title>"

    def answer(request: Request) -> Reply:
        return reply((head + LINKS).encode("cp932") if request.path == "/" else b"<p>", kind="text/html")

    folder = Folder(tmp_path)
    async with serving(answer) as site:
        url = f"http://127.0.0.1:{site.port}/"
        (tmp_path / "walk.py").write_text(SPIDER.format(start=repr(url)))
        await asyncio.to_thread(folder.run, "run", "walk.py", "-o", "items.jsonl")
        asked = {hit.path for hit in site.requests}
    assert asked == {"/", "/?q=%93%FA%96{", "/%E9%81%93?q=%8C%EA", "/?q=%96{"}
    assert '"title":"表示①"' in (tmp_path / "items.jsonl").read_text(encoding="utf-8").replace(": ", ":")


async def test_what_is_wrong_with_a_sitemap_is_counted_and_shown(tmp_path: Path) -> None:
    def answer(request: Request) -> Reply:
        if request.path == "/map.xml":
            entries = b"<url><loc>/1</loc><lastmod>\xff</lastmod></url><url/><url><loc>/2</loc></url>"
            return reply(b"\xef\xbb\xbf\n<urlset>" + entries + b"</urlset>", kind="application/xml")
        return reply("<title>x</title>")

    folder = Folder(tmp_path)
    async with serving(answer) as site:
        url = f"http://127.0.0.1:{site.port}"
        start = f"[Sitemap('{url}/map.xml'), Sitemap('{url}/gone.xml')]"
        (tmp_path / "walk.py").write_text(SPIDER.format(start=start))
        summary = (await asyncio.to_thread(folder.run, "run", "walk.py")).stdout
        assert {hit.path for hit in site.requests} == {"/map.xml", "/gone.xml", "/1", "/2"}
        fate = await asyncio.to_thread(folder.json, "why", f"{url}/map.xml")
    problem = "some of its bytes mean nothing in its charset, utf-8; 1 entry names no usable URL: <url> number 2"
    assert fate["fetch"]["error"] == f"sitemap {url}/map.xml: {problem}"
    lines = [" ".join(line.split()) for line in summary.splitlines()]
    assert any(line.startswith("2 bad_sitemap it is a sitemap or feed") for line in lines)
    assert any(line.startswith("1 sitemap_entry it is an entry of a sitemap") for line in lines)
    told = " ".join(lines)
    assert f"{url}/gone.xml: its root is <title>, not that of a sitemap or a feed" in told
    assert f"{url}/map.xml: {problem}" in told
