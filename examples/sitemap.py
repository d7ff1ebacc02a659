"""Every product that the site's sitemaps name: no listing page is fetched.

Try it on a shop of your own, in two terminals:

    python -m shoal.testing.sites.site --port 8000
    shoal run examples/sitemap.py --allow-private --rate 50/s -o products.csv
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal import Item, Page, Sitemap, Spider


class Products(Spider):
    # A bare site: its robots.txt says where the sitemaps are. Index files and gzip are read as they come.
    start = Sitemap("http://127.0.0.1:8000/", handler="product")

    def product(self, page: Page) -> Iterator[Any]:
        fields = {row.text("th"): row.text("td") for row in page.css("article table tr")}
        yield Item(key=fields["SKU"], title=page.text("h1"), price=fields["Price"], stock=int(fields["In stock"]))
