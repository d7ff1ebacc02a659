"""The spider of case Q: each page's title and links are made by a script. Starts at BENCH_URL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from shoal import Item, Page, Render, Request, Spider

RENDER = Render(wait_for="h1") if os.environ["BENCH_RENDER"] else False


class Rendered(Spider):
    start = os.environ["BENCH_URL"]
    rate = "unlimited"
    per_host = 64
    allow_private = True

    def parse(self, page: Page) -> Iterator[Any]:
        for url in page.links():
            yield Request(url, handler=self.made, render=RENDER)

    def made(self, page: Page) -> Iterator[Any]:
        yield Item(url=page.url, title=page.text("h1"), links=len(page.hrefs("a[href]")))
