"""Spiders whose start URLs are pushed to Redis, as with scrapy-redis: only the import changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from scrapy import FormRequest, Request, Spider
from scrapy.crawler import Crawler
from scrapy.spiders import CrawlSpider

from shoal.errors import UsageError
from shoal.integrations.scrapy.redis_settings import START_KEY, client_of, idle_seconds_of
from shoal.integrations.scrapy.redis_start import RedisStart

if TYPE_CHECKING:
    from redis import Redis


class RedisStartUrls:
    """What both spiders add to Scrapy's. A spider may set `redis_key`, `redis_batch_size`, `redis_encoding` and
    `max_idle_time`, in seconds; else the settings of scrapy-redis hold. `server` is a client of that Redis."""

    name: str
    redis_key: str | None = None
    redis_batch_size: int | None = None
    redis_encoding: str | None = None
    max_idle_time: float | None = None
    server: Redis | None = None
    _start: RedisStart | None = None

    def setup_redis(self, crawler: Crawler) -> None:
        """Take what the spider does not say from the settings."""
        settings = crawler.settings
        key = self.redis_key or settings.get("REDIS_START_URLS_KEY") or START_KEY
        self.redis_key = key % {"name": self.name}
        self.redis_batch_size = int(
            self.redis_batch_size
            or settings.getint("REDIS_START_URLS_BATCH_SIZE")
            or settings.getint("CONCURRENT_REQUESTS")
            or 16
        )
        self.redis_encoding = self.redis_encoding or settings.get("REDIS_ENCODING") or "utf-8"
        if self.max_idle_time is None:
            self.max_idle_time = idle_seconds_of(settings)
        if self.server is None:
            decodes = settings.getbool("REDIS_DECODE_RESPONSES")
            self.server = client_of(settings, **({"decode_responses": True} if decodes else {}))
        self._start = RedisStart(
            crawler,
            key=self.redis_key,
            batch_size=self.redis_batch_size,
            idle_seconds=float(self.max_idle_time),
            requests_of=self.make_request_from_data,
        )

    async def start(self) -> AsyncIterator[Any]:
        """The requests of what was pushed, for as long as the spider is open."""
        if self._start is None:
            raise UsageError(f"the spider {self.name!r} was made without from_crawler: start URLs cannot be read")
        async for request in self._start.requests():
            yield request

    def make_request_from_data(self, data: bytes) -> Request | Iterable[Request] | None:
        """The request or the requests of an entry: a URL, or a JSON object with `url` and perhaps `method` and `meta`,
        whose other fields are those of a form. What raises, or gives none, is set aside."""
        text = data.decode(self.redis_encoding or "utf-8") if isinstance(data, bytes) else data
        if not text.lstrip().startswith("{"):
            return Request(text.strip(), dont_filter=True)
        try:
            fields = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise UsageError(f"it is no JSON: {error}") from None
        url, method, meta = fields.pop("url", None), fields.pop("method", None) or "GET", fields.pop("meta", None)
        if not url:
            raise UsageError('it has no "url"')
        if not isinstance(url, str) or not isinstance(method, str) or not isinstance(meta, dict | None):
            raise UsageError('"url" and "method" must be texts, "meta" an object')
        return FormRequest(url, method=method.upper(), formdata=_form(fields), meta=meta or {}, dont_filter=True)


class RedisSpider(RedisStartUrls, Spider):
    """A spider whose start URLs are pushed to Redis."""

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> RedisSpider:
        """The spider of one run."""
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.setup_redis(crawler)
        return spider


class RedisCrawlSpider(RedisStartUrls, CrawlSpider):
    """A spider with rules whose start URLs are pushed to Redis."""

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> RedisCrawlSpider:
        """The spider of one run."""
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.setup_redis(crawler)
        return spider


def _form(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a form: numbers as their texts."""
    return {name: str(value) if isinstance(value, int | float) else value for name, value in fields.items()}
