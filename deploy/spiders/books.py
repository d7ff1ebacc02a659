"""Every book of a shop made for practice: `shoal run examples/books.py -o books.csv`."""

from collections.abc import Iterator
from typing import Any

from shoal import Item, Page, Spider


class Books(Spider):
    start = "https://books.toscrape.com/"
    rate = "4/s"  # per host, for the whole fleet

    def parse(self, page: Page) -> Iterator[Any]:
        yield from page.follow("article h3 a", self.book, priority=1)
        yield from page.follow("li.next a")

    def book(self, page: Page) -> Iterator[Any]:
        yield Item(key=page.text("tr:nth-child(1) td"), title=page.text("h1"), price=page.text(".price_color"))
