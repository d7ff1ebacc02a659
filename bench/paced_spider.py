"""The spider of the cases with a pace: one item per page, every link followed. Starts are in the file BENCH_STARTS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal import Item, Page, Spider


class Paced(Spider):
    start = Path(os.environ["BENCH_STARTS"]).read_text().split()
    allow_private = True

    def parse(self, page: Page) -> Iterator[Any]:
        yield Item(url=page.url, title=page.text("title"))
        yield from page.follow("a[href]")
