"""The start of a spider whose URLs are pushed to Redis: read, put, and only then forgotten there."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider

from shoal.errors import ShoalError
from shoal.integrations.scrapy.bridge import Bridge, bridge_of
from shoal.integrations.scrapy.redis_calls import sleep, until_answered
from shoal.integrations.scrapy.redis_settings import client_of, frontier_of
from shoal.integrations.scrapy.start_entries import StartEntries, StartEntry
from shoal.integrations.scrapy.stored_requests import ENTRY
from shoal.text.errors import line_of
from shoal.text.secrets import masked

LOOK_SECONDS = 0.5
SOON_SECONDS = 0.05
SHOWN_CHARACTERS = 200
MOST_GIVEN = 1000  # more are not read while the frontier does not take them

log = logging.getLogger("shoal")
T = TypeVar("T")
RequestsOf = Callable[[bytes], Any]


class RedisStart:
    """Reads what is pushed to one key, for one run of a spider. `idle_seconds` without work end it; 0: never."""

    def __init__(
        self, crawler: Crawler, *, key: str, batch_size: int, idle_seconds: float, requests_of: RequestsOf
    ) -> None:
        self._crawler = crawler
        self._batch_size = max(batch_size, 1)
        self._idle_seconds = idle_seconds
        self._requests_of = requests_of
        self._entries = StartEntries(client_of(crawler.settings, decode_responses=False, retry=None), key)
        # Entries whose requests are on their way to the frontier, with the number of tasks that must be put by then.
        self._given: deque[tuple[int, StartEntry]] = deque()
        self._taken: list[StartEntry] = []
        self._is_closed = False
        crawler.signals.connect(self._closed, signals.spider_closed)

    async def requests(self) -> AsyncIterator[Request]:
        """The requests of everything that is pushed. Ends when nobody of the crawl had work for `idle_seconds`."""
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
                # The engine asks for more: it has passed the requests of this entry to the scheduler.
                await self._given_out(entry, made, bridge)
                busy = time.monotonic()
            await self._forget(bridge)
            if is_full and len(self._given) < MOST_GIVEN:
                continue
            if self._given or self._has_work(bridge):
                busy = time.monotonic()
            elif 0 < self._idle_seconds <= time.monotonic() - busy:
                self._say(f"no work for {self._idle_seconds:g} s: no more start URLs are read, the spider ends")
                return
            await sleep(SOON_SECONDS if self._given else LOOK_SECONDS)

    def _bridge(self) -> Bridge:
        bridge = bridge_of(self._crawler)
        if not bridge.crawl:
            raise CloseSpider(
                'shoal: this RedisSpider needs shoal\'s scheduler: ADDONS = {"shoal.integrations.scrapy.Addon": 0}'
            )
        bridge.inflow.watches_left = self._idle_seconds > 0
        return bridge

    def _made_of(self, entry: StartEntry) -> list[Request] | str:
        """The requests of an entry, or why there are none."""
        try:
            made = self._requests_of(entry.pushed)
            requests = list(made) if isinstance(made, Iterable) else [made] if made else []
        except Exception as error:  # any entry may be pushed, and the method may be the project's
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
        """Let Redis forget the entries that the frontier has."""
        if confirmed := self._confirmed(bridge):
            await self._ask(partial(self._entries.done, confirmed))
            for _ in confirmed:
                self._given.popleft()

    def _confirmed(self, bridge: Bridge) -> list[StartEntry]:
        return [entry for number, entry in self._given if number <= bridge.inflow.put]

    def _has_work(self, bridge: Bridge) -> bool:
        """Whether any process of the crawl has something to do."""
        return len(bridge.visits) > 0 or bridge.inflow.left != 0

    async def _ask(self, step: Callable[[], T]) -> T:
        """A step in Redis, as soon as it can be reached. A key that holds no start URLs ends the spider."""
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
        """Forget what the frontier has, and let others take the rest at once. The worker has put all it was given."""
        from redis.exceptions import RedisError

        self._is_closed = True
        bridge = bridge_of(self._crawler)
        confirmed = self._confirmed(bridge)
        left = [*(entry for _, entry in self._given if entry not in confirmed), *self._taken]
        # Without this they would be taken again a little later, as after a kill.
        with contextlib.suppress(RedisError):
            if confirmed:
                self._entries.done(confirmed)
            if left:
                self._entries.give_back(left)

    def _shown(self) -> str:
        return masked(frontier_of(self._crawler.settings) or "redis://localhost:6379/0")

    def _say(self, line: str) -> None:
        log.info("%s", line, extra={"spider": self._crawler.spider})
