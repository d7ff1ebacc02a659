"""The spider behind `shoal crawl`: title, text, links and status of every page in scope."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shoal.page import Page
from shoal.spider import Item, Spider


class SitePages(Spider):
    """Follows every link in scope and keeps what a page says."""

    def parse(self, page: Page) -> Iterator[Any]:
        """One item per page, and every link."""
        if not page.is_html:
            yield Item(key=page.url, url=page.url, status=page.status, title="", text="", links=[])
            return
        yield Item(
            key=page.url,
            url=page.url,
            status=page.status,
            title=page.text("title"),
            text=page.text(),
            links=page.links(),
        )
        yield page.follow()
