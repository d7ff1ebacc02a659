"""A crawl of a site whose headers hold raw UTF-8 and Latin-1 bytes, as many older sites send them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from exit_crawl import ExitCrawl, pages_of, site

from shoal import Item, Spider
from shoal.testing.sites.loopback import Reply, Request, reply


def answer(request: Request) -> Reply:
    match request.path:
        case "/robots.txt":
            return reply("", status=301, headers={"Location": "/r\xc3\xa8gles.txt"})
        case "/r%C3%A8gles.txt":
            return reply("User-agent: *\nDisallow: /private", kind="text/plain")
        case "/":
            return reply("", status=302, headers={"Location": "/caf\xc3\xa9"})
        case "/caf%C3%A9":
            return reply("", status=301, headers={"Location": "/caf\xe9"})
        case "/caf%E9":
            kind = "text/html; charset=windows-1251; name=\xe9"
            return reply("<h1>кафе</h1><a href=/private>x</a>".encode("cp1251"), kind=kind)
    return reply("not here", status=404)


class Cafe(Spider):
    def parse(self, page: Any) -> Any:
        yield Item(key=page.url, title=page.text("h1"), kind=page.headers["content-type"])
        yield page.follow("a")


@pytest.mark.parametrize("seen_by", ["page", "robots.txt"])
async def test_redirects_and_content_types_with_raw_bytes_are_read(
    exit_crawl: Callable[..., ExitCrawl], seen_by: str
) -> None:
    async with site(answer) as server:
        url = f"http://127.0.0.1:{server.port}"
        crawl = exit_crawl(Cafe, f"{url}/", rate="unlimited", obey_robots=seen_by == "robots.txt")
        await crawl.run()
        (item,) = await crawl.items()
        assert msgspec.json.decode(item.data) == {"title": "кафе", "kind": "text/html; charset=windows-1251; name=\xe9"}
        assert item.key == f"{url}/caf%E9"
        asked = pages_of(server.requests)
        assert asked.pop("/r%C3%A8gles.txt", 0) == (seen_by == "robots.txt")
        assert asked.pop("/private", 0) == (seen_by == "page")
        assert asked == {"/": 1, "/caf%C3%A9": 1, "/caf%E9": 1}
