"""The spider of case J for shoal: every link followed, one item per page. Takes its start from BENCH_URL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from shoal import Item, Page, Spider


class Startup(Spider):
    start = os.environ["BENCH_URL"].split()
    rate = "unlimited"
    allow_private = True

    def parse(self, page: Page) -> Iterator[Any]:
        yield Item(url=page.url, title=page.text("title"))
        yield from page.follow("a[href]")
