"""Items in a list of Redis, as scrapy-redis leaves them for other programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scrapy.crawler import Crawler
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.misc import load_object
from scrapy.utils.serialize import ScrapyJSONEncoder
from twisted.internet.threads import deferToThread

from shoal.integrations.scrapy.bridge import spider_of
from shoal.integrations.scrapy.redis_settings import client_of

ITEMS_KEY = "%(spider)s:items"


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
        """The key for an item; a project's own pipeline may choose another."""
        return str(self._key % {"spider": spider.name})

    async def process_item(self, item: Any) -> Any:
        """Push the item, and pass it on."""
        key = self.item_key(item, spider_of(self._crawler))
        await maybe_deferred_to_future(deferToThread(self._server.rpush, key, self._text_of(item)))
        return item
