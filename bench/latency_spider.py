"""The spider of the case E, written as in the README: one item per page, every link followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from shoal import Item, Page, Spider


class Latency(Spider):
    start = os.environ["BENCH_URL"].split()
    rate = "unlimited"
    per_host = int(os.environ["BENCH_PER_HOST"])
    concurrency = 800
    allow_private = True

    def parse(self, page: Page) -> Iterator[Any]:
        yield Item(url=page.url, title=page.text("title"))
        yield from page.follow("a[href]")
