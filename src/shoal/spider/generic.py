"""The spider behind `shoal crawl`: title, text, links and status of every page in scope."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal.spider.page import Page
from shoal.spider.spider import Item, Spider

LINKS_LISTED = 10_000


class SitePages(Spider):
    """Follows every link in scope and keeps an item for each page."""

    def parse(self, page: Page) -> Iterator[Any]:
        """Keep one item per page, and follow every link."""
        if not page.is_html:
            yield Item(key=page.url, url=page.url, status=page.status, title="", text="", links=[])
            return
        yield Item(
            key=page.url,
            url=page.url,
            status=page.status,
            title=page.text("title"),
            text=page.text(),
            # A million links would take the worker ten seconds, and the store an item of megabytes.
            links=page.absolute(page.hrefs()[:LINKS_LISTED]),
        )
        yield page.follow()
