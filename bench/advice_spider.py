"""The spider of the case M: what bounds it is in its environment."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from shoal import Item, Page, Spider

BURN = float(os.environ.get("BENCH_BURN", "0"))


class Bound(Spider):
    name = "bound"
    start = os.environ["BENCH_URL"].split()
    rate = os.environ.get("BENCH_RATE", "unlimited")
    per_host = 1000
    concurrency = int(os.environ.get("BENCH_CONCURRENCY", "64"))
    allow_private = True
    obey_robots = False
    settings = {"pace": "fixed"}  # noqa: RUF012 -- as people write it

    def parse(self, page: Page) -> Iterator[Any]:
        ends = time.thread_time() + BURN
        while time.thread_time() < ends:
            pass
        yield Item(url=page.url, title=page.text("title"))
        yield from page.follow("a[href]")
