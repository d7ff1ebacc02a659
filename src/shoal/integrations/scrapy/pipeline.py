"""Items in a shoal store: a page is settled only after its items are stored."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from itemadapter import ItemAdapter
from scrapy.crawler import Crawler
from scrapy.exceptions import DropItem

from shoal.integrations.scrapy.bridge import bridge_of, spider_of
from shoal.integrations.scrapy.visits import CURRENT
from shoal.journey.harvest import KeyedItem
from shoal.journey.item_fields import encoded, key_text
from shoal.store.base import ItemRow


class StorePipeline:
    """Writes items to the crawl's store, upserted by key: the field of SHOAL_ITEM_KEY, else the URL of their page."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._bridge = bridge_of(crawler)
        self._field = crawler.settings.get("SHOAL_ITEM_KEY") or ""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> StorePipeline:
        """The pipeline of one spider's run."""
        return cls(crawler)

    def process_item(self, item: Any) -> Any:
        """Keep the item with the page that yielded it."""
        fields = ItemAdapter(item).asdict()
        visit = CURRENT.get()
        key = self._key(fields, visit.request.url if visit is not None and visit.request is not None else "")
        data = encoded(fields)
        if isinstance(data, str):
            raise DropItem(f"the item {key!r} cannot be stored: {data}")
        if visit is not None and not visit.is_over:
            visit.items.append(KeyedItem(key, data))
        else:
            self._bridge.inflow.items.append(self._row(key, data))
        return item

    def _row(self, key: str, data: bytes) -> ItemRow:
        """An item that no page has yielded."""
        at = time.time()
        return ItemRow(
            spider=spider_of(self._crawler).name,
            key=key,
            crawl=self._bridge.crawl,
            url="",
            data=data,
            token=int(at),
            at=at,
        )

    def _key(self, fields: Mapping[str, Any], url: str) -> str:
        if not self._field:
            return url
        key = fields.get(self._field)
        return url if key in (None, "") else key_text(key)
