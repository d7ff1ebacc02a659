"""The pace benchmark's spider: every link of a numbered graph followed. Start and rate are in the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from shoal import Item, Page, Spider


class Pace(Spider):
    start = os.environ["BENCH_URL"].split()
    rate = os.environ["BENCH_RATE"]
    per_host = 64
    concurrency = 16
    obey_robots = False
    allow_private = True
    max_per_shape = 0

    def parse(self, page: Page) -> Iterator[Any]:
        yield Item(key=page.url, number=page.text("h1"))
        yield page.follow("a")
