"""The spider of case H: one item per page. Takes its start from the file BENCH_STARTS; follows links if BENCH_DEEP is
set, at full speed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal import Item, Page, Spider

IS_DEEP = bool(os.environ["BENCH_DEEP"])


class Memory(Spider):
    start = Path(os.environ["BENCH_STARTS"]).read_text().split()
    allow_private = True
    max_per_shape = 0
    max_equal_pages = 0
    if IS_DEEP:
        rate = "unlimited"
        per_host = 64

    def parse(self, page: Page) -> Iterator[Any]:
        yield Item(url=page.url, title=page.text("title"))
        if IS_DEEP:
            yield from page.follow("a[href]")
