"""What users write: a spider, the requests and items it yields, and the sources it starts from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

if TYPE_CHECKING:
    from shoal.page import Page
    from shoal.session import Session


class Request(msgspec.Struct):
    """A URL to fetch, yielded by a handler or named in `Spider.start`. Only `url` is needed.

    - `url`: absolute, or relative to the page it is yielded from
    - `handler`: the method that gets the page, or its name; by default `parse`
    - `method`, `headers`, `body`, `json`: the request itself; `json` is sent as JSON in place of a body
    - `meta`: plain data that `page.meta` gives back to the handler
    - `priority`: within its host, a request with a higher number goes first
    - `depth`: links away from a start URL; by default one more than the page it is yielded from
    - `delay`: seconds to wait before it may start
    - `max_attempts`: attempts before it is a dead letter; by default the setting of that name
    - `key`: makes requests with the same key one task, whatever their URLs
    - `dedup`: False fetches the URL although the crawl knows it
    - `pool`: the pool of proxies or accounts to use, or "direct"; by default the setting `pool`, else the pool of the
      page it is yielded from
    """

    url: str
    handler: Callable[..., Any] | str | None = None
    method: str = "GET"
    headers: dict[str, str] | None = None
    body: bytes | str | None = None
    json: Any = None
    meta: dict[str, Any] | None = None
    priority: int = 0
    depth: int | None = None
    delay: float = 0.0
    max_attempts: int | None = None
    key: str | None = None
    dedup: bool = True
    pool: str | None = None


class Item(dict[str, Any]):
    """One result: a dict of its fields, and a key. An item written again under its key replaces the earlier one.

    Without a `key`, the field that the setting `item_key` names identifies the item, else the URL of its page."""

    def __init__(self, *, key: Any = None, **fields: Any) -> None:
        super().__init__(fields)
        self.key = key


class Sitemap(msgspec.Struct, frozen=True):
    """Start from the pages of a sitemap, which may be an index of sitemaps, and gzipped.

    `url` is a sitemap's, or a bare site such as https://example.com: then its robots.txt names the sitemaps. `handler`
    gets the pages; by default `parse`."""

    url: str
    handler: Callable[..., Any] | str | None = None


class Pages(msgspec.Struct, frozen=True):
    """Start from numbered pages: `{}` in the URL `template` stands for the number.

    The numbers go from `first` to `last`. `last` is a number, or the selector of an element on the first page that
    names the last number or links to the last page. `handler` gets the pages; by default `parse`."""

    template: str
    last: int | str
    first: int = 1
    handler: Callable[..., Any] | str | None = None


class UrlFile(msgspec.Struct, frozen=True):
    """Start from the URLs in a file, one a line; empty lines and lines that start with # are passed over.

    `path` is the file. `handler` gets the pages; by default `parse`."""

    path: str
    handler: Callable[..., Any] | str | None = None


class Stdin(msgspec.Struct, frozen=True):
    """Start from the URLs on standard input, one a line. `handler` gets the pages; by default `parse`."""

    handler: Callable[..., Any] | str | None = None


Source = str | Request | Sitemap | Pages | UrlFile | Stdin


class Spider:
    """Where to start and what to do with each page. Write a class that derives from this one.

    Handlers are methods that take a page and yield (or return a list of) requests, items, mappings, dataclasses,
    pydantic models or msgspec structs; `parse` is the default one. They may be plain or async.

    - `name`: what the crawl is called; by default the class name in small letters
    - `start`: a URL, a `Request` or a source (`Sitemap`, `Pages`, `UrlFile`, `Stdin`), or any number of them. It may
      be a method, a generator or an async generator, too
    - `settings`: settings as a dict; they win over class attributes

    Any setting may be a class attribute: `rate = "4/s"`, `max_depth = 3`.
    """

    name: ClassVar[str] = ""
    start: ClassVar[Any] = ()

    rate: ClassVar[str]
    per_host: ClassVar[int]
    concurrency: ClassVar[int]
    allow: ClassVar[Iterable[str]]
    deny: ClassVar[Iterable[str]]
    max_depth: ClassVar[int]
    max_pages: ClassVar[int]
    item_key: ClassVar[str]
    user_agent: ClassVar[str]
    obey_robots: ClassVar[bool]
    pool: ClassVar[str]
    settings: ClassVar[dict[str, Any]] = {}

    def parse(self, page: Page) -> Any:
        """Handle a page that no other handler was named for."""
        raise NotImplementedError(f"{type(self).__name__} has no parse method")

    async def login(self, session: Session) -> Any:
        """Log an account in. A login that raises or returns False has failed: the account is quarantined."""
        raise NotImplementedError(f"{type(self).__name__} has no login method")

    async def started(self) -> None:
        """Called once in each worker before its first page."""

    async def finished(self) -> None:
        """Called once in each worker after its last page."""


def has_login(spider: type[Spider]) -> bool:
    """Whether the spider can log accounts in."""
    return spider.login is not Spider.login


def spider_name(spider: type[Spider]) -> str:
    """The spider's name, or its class name in small letters."""
    return spider.name or spider.__name__.lower()
