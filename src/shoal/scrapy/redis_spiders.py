"""Spiders whose start URLs are pushed to a key in Redis, as with scrapy-redis: only the import changes.

An entry is removed from Redis only after the frontier has its tasks: until then it is in a second key, where every
process can take it again."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from scrapy import FormRequest, Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider
from scrapy.spiders import CrawlSpider

from shoal.errors import ShoalError, UsageError
from shoal.scrapy.bridge import Bridge, bridge_of
from shoal.scrapy.redis_client import START_KEY, client_of, frontier_of, idle_seconds_of, sleep, until_answered
from shoal.scrapy.requests import ENTRY
from shoal.text.errors import line_of
from shoal.text.secrets import masked

if TYPE_CHECKING:
    from redis import Redis

TAKEN_SECONDS = 30.0  # then another process may take the entry


class StartEntry(NamedTuple):
    """A pushed entry, under the name from its first take: the same for all who take it again."""

    name: str
    pushed: bytes

    @property
    def member(self) -> bytes:
        """Its form in Redis while it is taken."""
        return self.name.encode() + b" " + self.pushed


class StartEntries:
    """The start URLs of one spider. Every method is one blocking call to Redis."""

    def __init__(self, server: Redis, key: str) -> None:
        self.key = key
        self.aside = f"{key}:set_aside"
        self._under_way = f"{key}:under_way"
        self._server = server
        self._take = server.register_script(_script("take"))
        self._set_aside = server.register_script(_script("set_aside"))

    def take(self, number: int) -> list[StartEntry]:
        """Entries to be put now: first entries that other processes left, then new ones."""
        members = self._take(keys=[self.key, self._under_way], args=[number, os.urandom(8).hex(), TAKEN_SECONDS])
        return [_entry(member) for member in members]

    def make_due(self) -> None:
        """Let all taken entries be taken again, also those of living processes: put twice, an entry is the same
        task."""
        self._server.zunionstore(self._under_way, {self._under_way: 0})

    def done(self, entries: Sequence[StartEntry]) -> None:
        """Delete entries that the frontier has."""
        self._server.zrem(self._under_way, *(entry.member for entry in entries))

    def set_aside(self, entry: StartEntry) -> None:
        """Move an unusable entry to a list for people."""
        self._set_aside(keys=[self._under_way, self.aside], args=[entry.member, entry.pushed])

    def give_back(self, entries: Sequence[StartEntry]) -> None:
        """Let other processes take these at once."""
        self._server.zadd(self._under_way, {entry.member: 0 for entry in entries}, xx=True)


def _entry(member: bytes) -> StartEntry:
    name, _, pushed = member.partition(b" ")
    return StartEntry(name.decode(), pushed)


def _script(name: str) -> str:
    return resources.files("shoal.scrapy").joinpath("lua", f"{name}.lua").read_text()


POLL_SECONDS = 0.5
SOON_SECONDS = 0.05
SHOWN_CHARACTERS = 200
MAX_UNCONFIRMED = 1000  # stop reading while this many wait for the frontier

log = logging.getLogger("shoal")
T = TypeVar("T")
RequestsOf = Callable[[bytes], Any]


class RedisStart:
    """Reads the start URLs of one key, for one run of a spider. It ends after `idle_seconds` without work; 0: never."""

    def __init__(
        self, crawler: Crawler, *, key: str, batch_size: int, idle_seconds: float, requests_of: RequestsOf
    ) -> None:
        self._crawler = crawler
        self._batch_size = max(batch_size, 1)
        self._idle_seconds = idle_seconds
        self._requests_of = requests_of
        self._entries = StartEntries(client_of(crawler.settings, decode_responses=False, retry=None), key)
        # Entries whose requests are on their way to the frontier, with the number of tasks to be put until then.
        self._given: deque[tuple[int, StartEntry]] = deque()
        self._taken: list[StartEntry] = []
        self._is_closed = False
        crawler.signals.connect(self._closed, signals.spider_closed)

    async def requests(self) -> AsyncIterator[Request]:
        """The requests of all entries. Ends when no process of the crawl had work for `idle_seconds`."""
        bridge = self._bridge()
        self._say(f"start URLs are read from {self._entries.key!r} at {self._shown()}")
        await self._ask(self._entries.make_due)
        busy = time.monotonic()
        while not self._is_closed:
            self._taken = await self._ask(partial(self._entries.take, self._batch_size))
            is_full = len(self._taken) >= self._batch_size
            while self._taken:
                entry = self._taken[0]
                made = self._made_of(entry)
                for request in made if isinstance(made, list) else ():
                    yield request
                # The engine asks for more: the scheduler has the requests of this entry.
                await self._given_out(entry, made, bridge)
                busy = time.monotonic()
            await self._forget(bridge)
            if is_full and len(self._given) < MAX_UNCONFIRMED:
                continue
            if self._given or self._has_work(bridge):
                busy = time.monotonic()
            elif 0 < self._idle_seconds <= time.monotonic() - busy:
                self._say(f"no work for {self._idle_seconds:g} s: no more start URLs are read, the spider ends")
                return
            await sleep(SOON_SECONDS if self._given else POLL_SECONDS)

    def _bridge(self) -> Bridge:
        bridge = bridge_of(self._crawler)
        if not bridge.crawl:
            raise CloseSpider('shoal: this RedisSpider needs shoal\'s scheduler: ADDONS = {"shoal.scrapy.Addon": 0}')
        bridge.inflow.watches_left = self._idle_seconds > 0
        return bridge

    def _made_of(self, entry: StartEntry) -> list[Request] | str:
        """The requests of an entry, or why there are none."""
        try:
            made = self._requests_of(entry.pushed)
            requests = list(made) if isinstance(made, Iterable) else [made] if made else []
        except Exception as error:  # entries are arbitrary, and the method may be the project's
            return str(error) if isinstance(error, ShoalError) else line_of(error)
        if not requests:
            return "no request was made of it"
        for index, request in enumerate(requests):
            request.meta[ENTRY] = f"{entry.name}.{index}"
        return requests

    async def _given_out(self, entry: StartEntry, made: list[Request] | str, bridge: Bridge) -> None:
        why = made if isinstance(made, str) else ""
        for index in range(len(made) if isinstance(made, list) else 0):
            why = bridge.inflow.refused.pop(f"{entry.name}.{index}", "") or why
        if why:
            await self._ask(partial(self._entries.set_aside, entry))
            shown = entry.pushed[:SHOWN_CHARACTERS].decode(errors="replace")
            log.error(
                "the start URL %r is set aside in %r: %s; push it again when it is mended",
                shown, self._entries.aside, why, extra={"spider": self._crawler.spider},
            )  # fmt: skip
        else:
            self._given.append((bridge.inflow.given, entry))
        self._taken.pop(0)

    async def _forget(self, bridge: Bridge) -> None:
        """Delete entries that the frontier has."""
        if confirmed := self._confirmed(bridge):
            await self._ask(partial(self._entries.done, confirmed))
            for _ in confirmed:
                self._given.popleft()

    def _confirmed(self, bridge: Bridge) -> list[StartEntry]:
        return [entry for number, entry in self._given if number <= bridge.inflow.put]

    def _has_work(self, bridge: Bridge) -> bool:
        """Whether any process of the crawl has work."""
        return len(bridge.visits) > 0 or bridge.inflow.left != 0

    async def _ask(self, step: Callable[[], T]) -> T:
        """A call to Redis, repeated until it is reachable. A key without start URLs ends the spider."""
        from redis.exceptions import ResponseError

        def say(line: str) -> None:
            self._say(f"start URLs at {self._shown()} cannot be read: {line}")

        try:
            return await until_answered(step, say=say)
        except ResponseError as error:
            raise CloseSpider(f"shoal: {self._refusal(error)}") from None

    def _refusal(self, error: Exception) -> str:
        return (
            f"{self._entries.key!r} at {self._shown()} is no list, set or sorted set of start URLs ({line_of(error)}):"
            " delete it, or give another redis_key"
        )

    def _closed(self) -> None:
        """Delete entries that the frontier has, and let others take the rest at once. The worker has put all its
        tasks."""
        from redis.exceptions import RedisError

        self._is_closed = True
        bridge = bridge_of(self._crawler)
        confirmed = self._confirmed(bridge)
        left = [*(entry for _, entry in self._given if entry not in confirmed), *self._taken]
        # If this fails, others take them after TAKEN_SECONDS.
        with contextlib.suppress(RedisError):
            if confirmed:
                self._entries.done(confirmed)
            if left:
                self._entries.give_back(left)

    def _shown(self) -> str:
        return masked(frontier_of(self._crawler.settings) or "redis://localhost:6379/0")

    def _say(self, line: str) -> None:
        log.info("%s", line, extra={"spider": self._crawler.spider})


class RedisStartUrls:
    """What both spiders add to Scrapy's. A spider may set `redis_key`, `redis_batch_size`, `redis_encoding` and
    `max_idle_time` (seconds); else the settings of scrapy-redis apply. `server` is a client of that Redis."""

    name: str
    redis_key: str | None = None
    redis_batch_size: int | None = None
    redis_encoding: str | None = None
    max_idle_time: float | None = None
    server: Redis | None = None
    _start: RedisStart | None = None

    def setup_redis(self, crawler: Crawler) -> None:
        """Fill what the spider does not set from the settings."""
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
        """The requests of the entries, while the spider is open."""
        if self._start is None:
            raise UsageError(f"the spider {self.name!r} was made without from_crawler: start URLs cannot be read")
        async for request in self._start.requests():
            yield request

    def make_request_from_data(self, data: bytes) -> Request | Iterable[Request] | None:
        """The requests of an entry: a URL, or a JSON object with `url`, perhaps `method` and `meta`, whose other fields
        are form fields. An entry that raises, or gives no request, is set aside."""
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
