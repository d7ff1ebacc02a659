"""The spider of `shoal demo`: every book of a small shop, with its reviews on another, slower host.

`shoal demo` adds `start`: the shop's front page and `Sitemap(shop, handler="book")`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from shoal import Item, Page, Spider


class Shop(Spider):
    name = "demo"
    rate = "30/s"
    settings: ClassVar[dict[str, Any]] = {"pace": "fixed", "retry_seconds": 1.0}

    def parse(self, page: Page) -> Iterator[Any]:
        """The front page, and every page that lists books."""
        yield page.follow("article h3 a", self.book, priority=1)
        yield page.follow("a")

    def book(self, page: Page) -> Iterator[Any]:
        yield Item(
            key=page.text("tr:nth-child(1) td"),
            title=page.text("h1"),
            price=page.text(".price_color"),
            stock=int(page.text("tr:nth-child(3) td")),
        )
        yield page.follow("a.review", self.review)
        yield page.follow(".related a, footer a:not(.review)", self.book)

    def review(self, page: Page) -> Iterator[Any]:
        yield Item(key=page.url, title=page.text("h1"), stars=int(page.text(".stars")))
