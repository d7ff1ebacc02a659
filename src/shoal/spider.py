"""What users write: a spider, the requests and items it yields, and the sources it starts from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

if TYPE_CHECKING:
    from shoal.page import Page
    from shoal.session import Session


class Request(msgspec.Struct):
    """A URL to fetch. Only `url` is needed; `handler` is a method of the spider or its name."""

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
    """One result. `key` identifies it: an item written again under its key replaces the earlier one."""

    def __init__(self, *, key: Any = None, **fields: Any) -> None:
        super().__init__(fields)
        self.key = key


class Sitemap(msgspec.Struct, frozen=True):
    """Start from a sitemap, its index files and gzip included. A bare site: the sitemaps its robots.txt names."""

    url: str
    handler: Callable[..., Any] | str | None = None


class Pages(msgspec.Struct, frozen=True):
    """A range of numbered pages, each its own task: `{}` in the URL is the number.

    `last` is a number, or the selector of the element on the first page that names or links to the last."""

    template: str
    last: int | str
    first: int = 1
    handler: Callable[..., Any] | str | None = None


class UrlFile(msgspec.Struct, frozen=True):
    """URLs from a file, one a line; empty lines and lines that start with # are passed over."""

    path: str
    handler: Callable[..., Any] | str | None = None


class Stdin(msgspec.Struct, frozen=True):
    """URLs from standard input, one a line."""

    handler: Callable[..., Any] | str | None = None


Source = str | Request | Sitemap | Pages | UrlFile | Stdin


class Spider:
    """Where to start and what to do with each page.

    Any setting may be a class attribute: `rate = "4/s"`. Handlers are methods that take a page and yield (or
    return a list of) requests, items, mappings, dataclasses, pydantic models or msgspec structs; `parse` is the
    default one. They may be plain or async.
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
        """Handle a page no other handler was named for."""
        raise NotImplementedError(f"{type(self).__name__} has no parse method")

    async def login(self, session: Session) -> Any:
        """Log an account in. To give False, or to raise, says that it did not work."""
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
