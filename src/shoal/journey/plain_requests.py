"""Requests that a handler yields one after the other, kept back so that they are taken in together.

Most links of most pages are known. Together they cost a look-up each; one by one, each is resolved and checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from shoal.spider.spider import Request, Spider, check_handler, handler_name

MOST_TOGETHER = 500
_ENCODER = msgspec.msgpack.Encoder()
_META = msgspec.msgpack.Decoder(dict[str, Any])

# What a plain request says besides its URL: the name of its handler, its priority and its meta.
Asked = tuple[str, int, dict[str, Any] | None]


class HandlerNames:
    """The handlers of one spider, or of none. A name is looked up once."""

    __slots__ = ("_known", "_spider")

    def __init__(self, spider: Spider | None) -> None:
        self._spider = spider
        self._known: set[str] = set()

    def check(self, handler: Callable[..., Any] | str | None) -> str:
        """The name of a handler. One that the spider does not have is refused, where a request names it."""
        name = "parse" if handler is None else handler_name(handler)
        if name not in self._known:
            if self._spider is not None:
                check_handler(self._spider, name)
            self._known.add(name)
        return name


class PlainRequests:
    """Plain requests of one page, in order: they name a URL, a handler, a priority and meta, and nothing else.

    These are kept, and not the requests: a handler may change a request and yield it again."""

    __slots__ = ("_handler", "_name", "_names", "asked", "urls")

    def __init__(self, names: HandlerNames) -> None:
        self.urls: list[str] = []
        self.asked: list[Asked] = []
        self._names = names
        self._handler: Callable[..., Any] | str | None = ""
        self._name = ""

    def take(self, request: Request) -> bool:
        """Keep a request. False: it is not plain, something may be wrong with it, or enough are kept already."""
        url, meta, priority = request.url, request.meta, request.priority
        # In one expression, because this is done for every link of every page.
        if (
            type(url) is not str
            or type(priority) is not int
            or request.method != "GET"
            or request.headers is not None
            or request.body is not None
            or request.json is not None
            or request.depth is not None
            or request.delay
            or request.max_attempts is not None
            or request.key is not None
            or request.dedup is not True
            or request.pool is not None
            or request.region is not None
            or request.kind is not None
            or request.render is not None
            or request.revisit is not None
            or (meta is not None and not _can_be_kept(meta))
            or len(self.urls) >= MOST_TOGETHER
        ):
            return False
        handler = request.handler
        if handler != self._handler:
            self._name = self._names.check(handler)
            self._handler = handler
        self.urls.append(url)
        self.asked.append((self._name, priority, meta))
        return True

    def clear(self) -> None:
        """Forget the requests: they were taken in."""
        self.urls, self.asked = [], []


def _can_be_kept(meta: Any) -> bool:
    try:
        _META.decode(_ENCODER.encode(meta))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True
