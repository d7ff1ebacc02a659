"""The spider of crash tests and `shoal chaos`: each page of a numbered graph yields one item and all its links. A
marked page harms the worker that handles it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal import Item, Page, Spider
from shoal.testing.chaos.bad_pages import do_harm


class Graph(Spider):
    def parse(self, page: Page) -> Iterator[Any]:
        if mark := page.text(".mark"):
            do_harm(mark)
        yield Item(key=page.url, number=page.text("h1"))
        yield page.follow("a")
