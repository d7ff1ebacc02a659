"""What users write: a spider, the requests and items it yields, and the sources it starts from."""

from __future__ import annotations

import ast
import functools
import inspect
import logging
import textwrap
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

import msgspec

from shoal.errors import UsageError
from shoal.logs import SPIDERS
from shoal.model import Render
from shoal.settings.values import check_kind
from shoal.text.near_names import did_you_mean

if TYPE_CHECKING:
    from shoal.spider.page import Page
    from shoal.spider.session import Session


class SpiderLog(logging.LoggerAdapter[logging.Logger]):
    """The logger `self.log`. Fields given as `extra` are on the line, too."""

    def __init__(self, spider: str) -> None:
        super().__init__(logging.getLogger(f"{SPIDERS}.{spider}"), {})

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """The line unchanged: the log's handler adds the page from the context."""
        return msg, kwargs


class Request(msgspec.Struct):
    """A URL to fetch, yielded by a handler or listed in a spider's `start`. Only `url` is required.

    - `url`: absolute, or relative to the page that yields it
    - `handler`: the method that handles the page; None: `parse`
    - `method`: the HTTP method
    - `headers`: headers to send besides shoal's own
    - `body`: the request body; text is encoded as UTF-8
    - `json`: data to send as JSON, instead of `body`
    - `meta`: plain data for the handler, in `page.meta`
    - `priority`: tasks of a host with a higher number are fetched first
    - `depth`: number of links from a start URL; None: one more than the page that yields it
    - `delay`: fetch it after at least so many seconds
    - `max_attempts`: attempts before it becomes a dead letter; None: the setting `max_attempts`
    - `key`: identifies the task instead of its URL, method and body
    - `dedup`: False: fetch it even if the crawl knows the URL
    - `pool`: the pool of exits to use, or `direct`; None: the spider's pool, else the linking page's
    - `region`: instead of a pool: use exits that workers offer for this region, such as "de"
    - `kind`: the kind of workers that do it (`--kinds`); None: the spider's kind, else `http`
    - `render`: True or a `Render`: render the page in a browser, in workers of the kind `browser`; None: the spider's
      `render`
    - `revisit`: time until the page is visited again, as "24h", or "never"; None: the setting `revisit`
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
    kind: str | None = None
    render: bool | Render | None = None
    revisit: str | None = None
    region: str | None = None


class Item(dict[str, Any]):
    """One result: a dict of its fields. A later item with the same key replaces it.

    - `key`: identifies the item; None: the value of the field `item_key` (a setting), else the page's URL
    """

    def __init__(self, *, key: Any = None, **fields: Any) -> None:
        super().__init__(fields)
        self.key = key


class Sitemap(msgspec.Struct, frozen=True):
    """Start from the pages of a sitemap, an index of sitemaps, a feed (RSS, Atom) or a text file of URLs; also gzipped.

    - `url`: the file, or a site such as https://example.com, whose robots.txt lists its sitemaps
    - `handler`: the method that handles each page; None: `parse`
    - `revisit`: time until the file and its sitemaps are read again, as "1h"; None: the setting `revisit`. Pages that
      are revisited and have changed by their `lastmod` are then visited at once
    - `priority`: of each page and of the file; higher numbers are fetched first
    - `depth`: of each page, as if found after so many links
    - `pool`: the pool of exits for the file and each page; None: the spider's
    - `meta`: data for the handler of each page
    """

    url: str
    handler: Callable[..., Any] | str | None = None
    revisit: str | None = None
    priority: int = 0
    depth: int = 0
    pool: str | None = None
    meta: dict[str, Any] | None = None


class Pages(msgspec.Struct, frozen=True):
    """Start from a range of numbered pages, each a task of its own.

    - `template`: the URL, with `{}` for the number
    - `last`: the last number (the page count), or the selector of an element on the first page that shows it or links
      to the last page
    - `first`: the first number
    - `handler`: the method that handles each page; None: `parse`
    - `priority`: of each page; higher numbers are fetched first
    - `depth`: of each page, as if found after so many links
    - `pool`: the pool of exits for each page; None: the spider's
    - `meta`: data for the handler of each page
    """

    template: str
    last: int | str
    first: int = 1
    handler: Callable[..., Any] | str | None = None
    priority: int = 0
    depth: int = 0
    pool: str | None = None
    meta: dict[str, Any] | None = None


class UrlFile(msgspec.Struct, frozen=True):
    """Start from the URLs in a file, one per line; empty lines and lines that start with # are skipped.

    - `path`: the file, relative to the current folder
    - `handler`: the method that handles each page; None: `parse`
    - `priority`: of each page; higher numbers are fetched first
    - `depth`: of each page, as if found after so many links
    - `pool`: the pool of exits for each page; None: the spider's
    - `meta`: data for the handler of each page
    """

    path: str
    handler: Callable[..., Any] | str | None = None
    priority: int = 0
    depth: int = 0
    pool: str | None = None
    meta: dict[str, Any] | None = None


class Stdin(msgspec.Struct, frozen=True):
    """Start from the URLs on standard input, one per line.

    - `handler`: the method that handles each page; None: `parse`
    - `priority`: of each page; higher numbers are fetched first
    - `depth`: of each page, as if found after so many links
    - `pool`: the pool of exits for each page; None: the spider's
    - `meta`: data for the handler of each page
    """

    handler: Callable[..., Any] | str | None = None
    priority: int = 0
    depth: int = 0
    pool: str | None = None
    meta: dict[str, Any] | None = None


Source = str | Request | Sitemap | Pages | UrlFile | Stdin


class Spider:
    """Where to start and what to do with each page: derive your spider from this class.

    Handlers are methods that take a page and yield (or return a list of) requests, items, mappings, dataclasses,
    pydantic models or msgspec structs; the default handler is `parse`. They may be plain or async. Any setting may be a
    class attribute: `rate = "4/s"`.

    - `name`: the spider's name in commands; empty: the class name in lower case
    - `start`: where to begin: a URL, a request, a source, a list of these, or a method that yields them
    - `settings`: settings by name, for those that are no attribute here
    - `arguments`: the values of `-a NAME=VALUE`, the same in every worker of the crawl
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
    max_items: ClassVar[int]
    max_bytes: ClassVar[int]
    max_seconds: ClassVar[float]
    deadline: ClassVar[str]
    item_key: ClassVar[str]
    user_agent: ClassVar[str]
    obey_robots: ClassVar[bool]
    pool: ClassVar[str]
    kind: ClassVar[str]
    render: ClassVar[bool]
    settings: ClassVar[dict[str, Any]] = {}
    arguments: Mapping[str, str] = MappingProxyType({})

    @functools.cached_property
    def log(self) -> SpiderLog:
        """A standard logger. Each line has the crawl, the worker and the current page; warnings are always shown, INFO
        with `-v`."""
        return SpiderLog(spider_name(type(self)))

    def parse(self, page: Page) -> Any:
        """Handle the pages of requests that name no other handler."""
        raise NotImplementedError(f"{type(self).__name__} has no parse method")

    async def login(self, session: Session) -> Any:
        """Log an account in. If it raises or returns False, the account is quarantined."""
        raise NotImplementedError(f"{type(self).__name__} has no login method")

    async def started(self) -> None:
        """Called once in each worker before its first page."""

    async def finished(self) -> None:
        """Called once in each worker after its last page."""


LONGEST_REASON = 200


class StopCrawl(Exception):  # noqa: N818 -- reads as what happened
    """Raise it in a handler, or in `start`, to stop the whole crawl: pages in flight are finished, no more are started.

    The handler's output so far is kept, and its page is done. Waiting tasks stay: `shoal resume`, or the same command
    again, continues the crawl.

    - `why`: the reason shown to people, in one line
    """

    def __init__(self, why: object = "") -> None:
        super().__init__(" ".join(str(why)[:LONGEST_REASON].split()) or "it raised StopCrawl")


_F = TypeVar("_F", bound=Callable[..., Any])
_KIND = "__shoal_kind__"


def handler(*, kind: str) -> Callable[[_F], _F]:
    """Mark a handler to run in workers of this kind (`--kinds`), on the page that another worker archived.

    - `kind`: the name of the kind
    """
    check_kind(kind, what="a handler of the kind")

    def mark(function: _F) -> _F:
        setattr(function, _KIND, kind)
        return function

    return mark


def handler_kinds(spider: type[Spider]) -> dict[str, str]:
    """The kinds of the handlers that are marked with one, by name."""
    found = {name: getattr(getattr(spider, name, None), _KIND, None) for name in dir(spider)}
    return {name: kind for name, kind in found.items() if isinstance(kind, str)}


def has_login(spider: type[Spider]) -> bool:
    """Whether the spider can log accounts in."""
    return spider.login is not Spider.login


def spider_name(spider: type[Spider]) -> str:
    """The spider's name, or its class name in lower case."""
    return spider.name or spider.__name__.lower()


@overload
def handler_name(handler: None) -> None: ...
@overload
def handler_name(handler: Callable[[Page], Any] | str) -> str: ...
def handler_name(handler: Callable[[Page], Any] | str | None) -> str | None:
    """The name of a handler in tasks."""
    if handler is None or isinstance(handler, str):
        return handler
    return handler.__name__


def check_handler(spider: Spider, name: str) -> None:
    """Raise UsageError if the spider has no such handler, or if it yields and returns a value: Python drops the return
    value of a generator."""
    kind = type(spider)
    has_parse = getattr(spider.parse, "__func__", None) is not Spider.parse
    if name == "parse" and not has_parse:
        raise UsageError(f"{kind.__name__} has no parse method, and a request names no other handler: write one")
    handler = getattr(spider, name, None)
    if callable(handler):
        if line := _dropped_return(handler):
            raise UsageError(f"{kind.__name__}.{name} yields, so what it returns in line {line} is lost: yield it, too")
        return
    hint = did_you_mean(name, handler_names(kind), otherwise="write one, or name another")
    raise UsageError(f"{kind.__name__} has no handler {name!r}: {hint}")


def handler_names(spider: type[Spider]) -> tuple[str, ...]:
    """The methods of a spider that can handle pages, by name."""
    own = [name for name in dir(spider) if not hasattr(Spider, name) and callable(getattr(spider, name, None))]
    has_parse = spider.parse is not Spider.parse
    return (*own, "parse") if has_parse else tuple(own)


def _dropped_return(handler: Callable[..., Any]) -> int:
    """The line of the return statement of a generator that returns a value; 0: none, or no source."""
    function = getattr(handler, "__func__", handler)
    # `getsource` of a wrapper returns the source of the wrapped function.
    if not inspect.isgeneratorfunction(function) or hasattr(function, "__wrapped__"):
        return 0
    try:
        (written,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, ValueError, SyntaxError):
        return 0
    # The file may have been edited since it was loaded.
    if not isinstance(written, ast.FunctionDef) or written.name != function.__name__:
        return 0
    nodes: list[ast.AST] = list(written.body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
            return int(function.__code__.co_firstlineno) + node.lineno - 1
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            nodes += ast.iter_child_nodes(node)
    return 0


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def own_attributes(spider: type[Spider]) -> dict[str, Any]:
    """The public attributes that a spider's class adds to those of Spider."""
    classes = [kind for kind in reversed(spider.__mro__) if kind not in Spider.__mro__]
    return {
        name: value
        for kind in classes
        for name, value in vars(kind).items()
        if not name.startswith("_") and not hasattr(Spider, name)
    }
