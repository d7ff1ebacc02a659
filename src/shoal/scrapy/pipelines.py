"""Item pipelines: to a shoal store, where a page is settled only after its items are stored; and to a Redis list, as
scrapy-redis leaves items for other programs."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from itemadapter import ItemAdapter
from scrapy.crawler import Crawler
from scrapy.exceptions import DropItem
from scrapy.utils.misc import load_object
from scrapy.utils.serialize import ScrapyJSONEncoder

from shoal.journey.harvest import KeyedItem
from shoal.journey.item_fields import NoJson, encoded, key_text
from shoal.journey.results import unstorable_item
from shoal.scrapy.bridge import bridge_of, spider_of
from shoal.scrapy.redis_client import client_of, until_answered
from shoal.scrapy.visits import CURRENT, Visit
from shoal.store.base import ItemRow

ITEMS_KEY = "%(spider)s:items"
PATIENCE_SECONDS = 60.0

log = logging.getLogger("shoal")


class RedisPipeline:
    """Pushes each item as JSON to the end of a list: REDIS_ITEMS_KEY, by default `%(spider)s:items`."""

    def __init__(self, crawler: Crawler) -> None:
        settings = crawler.settings
        self._crawler = crawler
        self._key = settings.get("REDIS_ITEMS_KEY") or ITEMS_KEY
        serializer = settings.get("REDIS_ITEMS_SERIALIZER")
        self._text_of: Callable[[Any], Any] = load_object(serializer) if serializer else ScrapyJSONEncoder().encode
        self._server = client_of(settings)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> RedisPipeline:
        """The pipeline of one spider's run."""
        return cls(crawler)

    def item_key(self, item: Any, spider: Any) -> str:
        """The list for an item; a project's own pipeline may choose another one."""
        return str(self._key % {"spider": spider.name})

    async def process_item(self, item: Any) -> Any:
        """Push the item, and pass it on."""
        key = self.item_key(item, spider_of(self._crawler))
        step = partial(self._server.rpush, key, self._text_of(item))
        # Repeated: else a restart of Redis would make its page a dead letter.
        await until_answered(step, say=self._say, patience=PATIENCE_SECONDS)
        return item

    def _say(self, line: str) -> None:
        log.info("items cannot be pushed to Redis: %s", line, extra={"spider": self._crawler.spider})


class StorePipeline:
    """Writes items to the crawl's store, upserted by key: the field named by SHOAL_ITEM_KEY, else the URL of their
    page."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._bridge = bridge_of(crawler)
        self._field = crawler.settings.get("SHOAL_ITEM_KEY") or ""
        self._contents: Counter[str] = Counter()
        self._has_warned = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> StorePipeline:
        """The pipeline of one spider's run."""
        return cls(crawler)

    def process_item(self, item: Any) -> Any:
        """Add the item to the page that yielded it."""
        fields = ItemAdapter(item).asdict()
        visit = CURRENT.get()
        if visit is not None and visit.is_over:
            visit = None
        data = encoded(fields)
        key = self._key(fields, data, visit)
        if isinstance(data, str):
            if visit is not None:
                visit.unstorable = visit.unstorable or unstorable_item(key, data)
            raise DropItem(f"the item {key!r} cannot be stored: {data}")
        if visit is not None:
            visit.items.append(KeyedItem(key, data))
        else:
            self._bridge.inflow.items.append(self._row(key, data))
        return item

    def _row(self, key: str, data: bytes) -> ItemRow:
        """An item that belongs to no page."""
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

    def _key(self, fields: Mapping[str, Any], data: bytes | str, visit: Visit | None) -> str:
        key = fields.get(self._field) if self._field else None
        if key not in (None, ""):
            with contextlib.suppress(NoJson):  # then `data` is the reason
                return key_text(key)
        elif self._field and not self._has_warned:
            self._has_warned = True
            log.warning(
                "an item has no %r, which SHOAL_ITEM_KEY names: it is keyed by its page, as all others without it",
                self._field, extra={"spider": self._crawler.spider},
            )  # fmt: skip
        return visit.page_key() if visit is not None else self._key_of_content(str(data))

    def _key_of_content(self, content: str) -> str:
        """The key of an item without a key and a page: the same in every process that makes the item."""
        name = hashlib.blake2b(content.encode("utf-8", "replace"), digest_size=8).hexdigest()
        self._contents[name] += 1
        return f"item {name}" if self._contents[name] == 1 else f"item {name}#{self._contents[name]}"
