"""Items in a list of Redis, as scrapy-redis leaves them for other programs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from scrapy.crawler import Crawler
from scrapy.utils.misc import load_object
from scrapy.utils.serialize import ScrapyJSONEncoder

from shoal.integrations.scrapy.bridge import spider_of
from shoal.integrations.scrapy.redis_calls import until_answered
from shoal.integrations.scrapy.redis_settings import client_of

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
        """The key for an item; a project's own pipeline may choose another."""
        return str(self._key % {"spider": spider.name})

    async def process_item(self, item: Any) -> Any:
        """Push the item, and pass it on."""
        key = self.item_key(item, spider_of(self._crawler))
        step = partial(self._server.rpush, key, self._text_of(item))
        # Its page would end as a dead letter at the first restart of Redis.
        await until_answered(step, say=self._say, patience=PATIENCE_SECONDS)
        return item

    def _say(self, line: str) -> None:
        log.info("items cannot be pushed to Redis: %s", line, extra={"spider": self._crawler.spider})
