"""The spider of crash tests and `shoal chaos`: every page of a numbered graph gives one item and all its links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal import Item, Page, Spider


class Graph(Spider):
    def parse(self, page: Page) -> Iterator[Any]:
        yield Item(key=page.url, number=page.text("h1"))
        yield page.follow("a")
