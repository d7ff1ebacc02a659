"""The benchmark's spider for shoal: every link followed, one item per page. Takes its start from BENCH_URL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from shoal import Item, Page, Spider


class Bench(Spider):
    start = os.environ["BENCH_URL"].split()
    rate = "unlimited"
    per_host = 64
    concurrency = 64
    obey_robots = False
    allow_private = True
    max_per_shape = 0

    def parse(self, page: Page) -> Iterator[Any]:
        links = page.hrefs()
        yield Item(url=page.url, title=page.text("title"), links=len(links))
        yield page.follow(links)
