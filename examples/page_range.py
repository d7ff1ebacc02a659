"""A numbered listing whose last page is read off the first one, so that all pages are known at once.

Following "next" links would fetch one page after the other; this way they are fetched side by side.
Try it on a shop of your own, in two terminals:

    python -m shoal.testing.sites.site --port 8000
    shoal run examples/page_range.py --allow-private --rate 20/s -o prices.csv
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal import Item, Page, Pages, Spider


class Prices(Spider):
    start = Pages("http://127.0.0.1:8000/catalogue/page-{}.html", last="a.last")

    def parse(self, page: Page) -> Iterator[Any]:
        for book in page.css("article.product_pod"):
            link = book.css("h3 a")[0]
            yield Item(key=link.attr("href"), title=link.text(), price=book.text(".price_color"))
