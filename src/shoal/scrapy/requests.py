"""Scrapy's requests as tasks, and tasks as requests. Nothing is pickled: any program can read a task.

Cookies travel with a request: the process that runs it may not be the one that logged in."""

from __future__ import annotations

import inspect
import math
import os
import time
from collections.abc import Mapping
from hashlib import blake2b
from http.cookiejar import Cookie
from typing import Any

import msgspec
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.request import request_from_dict

from shoal.errors import UsageError
from shoal.exits.pools import regional_kind
from shoal.model import DIRECT, HTTP, VIA, Task, random_key
from shoal.scrapy.fingerprints import Fingerprint, key_of
from shoal.urls.canonical import canonical, lane_of

COOKIES = "cookies"  # of a task's meta


class _StoredCookie(msgspec.Struct, frozen=True, array_like=True):
    name: str
    value: str | None
    domain: str
    path: str
    is_secure: bool
    expires: int | None


class _StoredCookies(msgspec.Struct, frozen=True, array_like=True):
    process: str
    cookies: list[_StoredCookie]


class CarriedCookies:
    """Stores the cookies of a request's jar for its host with its task, and restores them into the jar of another
    process. If two tasks carry the same cookie, the later task wins."""

    def __init__(self, crawler: Crawler) -> None:
        self._middleware = crawler.get_downloader_middleware(CookiesMiddleware)
        self._process = os.urandom(8).hex()
        self._at: dict[tuple[Any, str, str, str], float] = {}

    def of(self, request: Request) -> dict[str, bytes]:
        """The cookies for a task; empty if the jar has none for its host."""
        jar_name = request.meta.get("cookiejar")
        if self._middleware is None or jar_name not in self._middleware.jars:
            return {}
        host = (urlparse_cached(request).hostname or "").lower()
        cookies = [
            _StoredCookie(cookie.name, cookie.value, cookie.domain, cookie.path, cookie.secure, cookie.expires)
            for cookie in self._middleware.jars[jar_name]
            if f".{host}".endswith(f".{cookie.domain.removeprefix('.')}")
        ]
        return {COOKIES: msgspec.msgpack.encode(_StoredCookies(self._process, cookies))} if cookies else {}

    def bring(self, task: Task, request: Request) -> None:
        """Restore the cookies of a task that another process found into the request's jar."""
        packed = (task.meta or {}).get(COOKIES)
        if packed is None or self._middleware is None:
            return
        carried = msgspec.msgpack.decode(packed, type=_StoredCookies)
        if carried.process == self._process:
            # The jar has these cookies, or newer ones.
            return
        jar_name = request.meta.get("cookiejar")
        jar = self._middleware.jars[jar_name]
        for kept in carried.cookies:
            place = (jar_name, kept.domain, kept.path, kept.name)
            if self._at.get(place, 0.0) < task.created:
                self._at[place] = task.created
                jar.set_cookie(Cookie(**_cookie_fields(kept)))


def _cookie_fields(kept: _StoredCookie) -> Mapping[str, Any]:
    has_dot = kept.domain.startswith(".")
    return {
        "version": 0,
        "name": kept.name,
        "value": kept.value,
        "port": None,
        "port_specified": False,
        "domain": kept.domain,
        "domain_specified": has_dot,
        "domain_initial_dot": has_dot,
        "path": kept.path,
        "path_specified": True,
        "secure": kept.is_secure,
        "expires": kept.expires,
        "discard": kept.expires is None,
        "comment": None,
        "comment_url": None,
        "rest": {},
    }


FIELD, PAGE = "scrapy", "page"  # of a task's meta
ENTRY = "shoal_entry"  # in a request's meta until it is scheduled: its entry in Redis
# Of `Request.attributes`: fields that a task has itself, and fields that are checked for JSON.
_OWN = frozenset({"url", "method", "body", "priority", "headers", "callback", "errback"})
_NAMED = ("headers", "callback", "errback")  # of _OWN, fields that are packed as well, in plain form
_CHECKED = ("meta", "cb_kwargs", "cookies", "flags")
_NESTED_AT_MOST = 100
LANES_REMEMBERED = 10_000
_LAST_64_BITS = 2**64 - 1

Meta = dict[str, Any]


class UnfitRequest(UsageError):  # noqa: N818 -- reads as what is wrong
    """A request that cannot leave this process; says what is wrong with it, and where."""


class StoredRequests:
    """Makes tasks of the requests of a spider, and requests of tasks. Without a spider: of requests whose callbacks are
    names."""

    def __init__(self, spider: Spider | None, fingerprint: Fingerprint) -> None:
        self._spider = spider
        self._fingerprint = fingerprint
        self._lanes: dict[tuple[str, str], str] = {}

    def key_of(self, request: Request, *, is_start: bool, entry: str = "") -> int:
        """The key of a request: its fingerprint. With dont_filter it has a key of its own, except a start request,
        which every process of the fleet makes, also after a crash. `entry` is the name of an entry in Redis: pushed
        twice it has two names, read twice it has one."""
        if request.dont_filter and entry:
            return int.from_bytes(blake2b(entry.encode(), digest_size=8).digest(), "big", signed=True)
        if request.dont_filter and not is_start:
            return random_key()
        return key_of(self._fingerprint(request))

    def task_of(
        self, request: Request, key: int, *, parent: Task | None = None, more: Meta | None = None, pool: str = DIRECT
    ) -> Task:
        """The request as a task with `more` in its meta. Raises UnfitRequest if it cannot leave this process."""
        return self.task_with(_fields(request, self._spider), request, key, parent=parent, more=more, pool=pool)

    def task_with(
        self,
        fields: Meta,
        request: Request,
        key: int,
        *,
        parent: Task | None = None,
        more: Meta | None = None,
        pool: str = DIRECT,
    ) -> Task:
        """A task from the request's fields, with callbacks as names."""
        return Task(
            url=request.url,
            key=key,
            lane=self._lane(request) if pool == DIRECT else f"{self._lane(request)}{VIA}{pool}",
            handler=fields["callback"] or "parse",
            depth=int(request.meta.get("depth", 0 if parent is None else parent.depth + 1)),
            priority=request.priority,
            method=request.method,
            body=request.body or None,
            meta={FIELD: _packed(fields, request), **(more or {})},
            pool=pool,
            kind=regional_kind(HTTP, pool),
            parent=None if parent is None else parent.key,
            created=time.time(),
        )

    def letter_of(self, request: Request, key: int) -> Task:
        """The dead letter of a request that cannot leave this process."""
        return Task(url=request.url, key=key, lane=urlparse_cached(request).netloc or "unfit", created=time.time())

    def page_name(self, request: Request, key: int, *, is_start: bool, before: Task | None = None) -> Meta:
        """The name that keyless items of the page get, if it is not the URL. `before`: the task that the request
        continues, such as a redirected one."""
        has_own_key = request.dont_filter and not is_start
        if has_own_key and before is not None:
            return {PAGE: page_of(before)}
        if has_own_key or request.method != "GET" or request.body:
            # Other requests may have this URL: their items would replace each other.
            return {PAGE: f"{request.url} {key & _LAST_64_BITS:016x}"}
        return {}

    def request_of(self, task: Task) -> Request:
        """The request of a task. Raises UnfitRequest if the spider no longer has its method or class."""
        packed = (task.meta or {}).get(FIELD)
        fields: dict[str, Any] = msgspec.msgpack.decode(packed) if packed else {}
        fields.update(url=task.url, method=task.method, body=task.body or b"", priority=task.priority)
        fields.setdefault("callback", None if task.handler == "parse" else task.handler)
        try:
            return request_from_dict(fields, spider=self._spider)
        except (ValueError, NameError, ImportError, TypeError) as error:
            raise UnfitRequest(f"the request cannot be made again: {error}; is this the spider that made it?") from None

    def _lane(self, request: Request) -> str:
        parts = urlparse_cached(request)
        lane = self._lanes.get((parts.scheme, parts.netloc))
        if lane is None:
            try:
                lane = lane_of(canonical(f"{parts.scheme}://{parts.netloc}/"))
            except UsageError as error:
                if parts.scheme in ("http", "https"):
                    raise UnfitRequest(str(error)) from None
                # Scrapy has handlers for others: files, s3, data.
                lane = parts.netloc or f"{parts.scheme}:"
            if len(self._lanes) >= LANES_REMEMBERED:
                self._lanes.clear()
            self._lanes[parts.scheme, parts.netloc] = lane
        return lane


def page_of(task: Task) -> str:
    """The name of a page within its crawl: its URL, with a number if other pages may have that URL."""
    return str((task.meta or {}).get(PAGE, task.url))


def _fields(request: Request, spider: Spider | None) -> Meta:
    fields: Meta = {name: getattr(request, name) for name in request.attributes if name not in _OWN}
    fields["headers"] = {name: [bytes(value) for value in values] for name, values in request.headers.items()}
    fields["callback"] = _method_name(spider, request.callback, "callback")
    fields["errback"] = _method_name(spider, request.errback, "errback")
    if type(request) is not Request:
        fields["_class"] = f"{type(request).__module__}.{type(request).__qualname__}"
    return fields


def _packed(fields: Meta, request: Request) -> bytes:
    """All fields of a request that a task has no field for."""
    for name in _CHECKED:
        where = _unfit(fields.get(name), name)
        if where is not None:
            raise UnfitRequest(f"{request}: {where}: what leaves the process must be JSON, such as a text or a number")
    kept = {name: value for name, value in fields.items() if name not in _OWN or name in _NAMED}
    try:
        return msgspec.msgpack.encode(kept, enc_hook=_plain)
    except (TypeError, UnicodeEncodeError, OverflowError) as error:
        raise UnfitRequest(f"{request} cannot leave the process: {error}") from None


def _plain(value: Any) -> Any:
    """A value of a subclass of a plain type, such as the link text from lxml, as the plain type."""
    kinds: tuple[type, ...] = (str, int, float, list, tuple)
    for kind in kinds:
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {str(name): inner for name, inner in value.items()}
    raise TypeError(f"a value of type {type(value).__name__} is no JSON")


def _method_name(spider: Spider | None, function: Any, role: str) -> str | None:
    """The name by which another process finds the function."""
    if function is None or isinstance(function, str):
        return function or None
    name = getattr(function, "__name__", "")
    if spider is not None and getattr(function, "__self__", None) is spider and getattr(spider, name, None) == function:
        return str(name)
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    raise UnfitRequest(
        f"the {role} {name or function!r}{where} is not a method of the spider {getattr(spider, 'name', '')!r}, so no"
        f" other process can call it: write it as a method and pass its data by cb_kwargs"
    )


def _unfit(value: Any, where: str, nested: int = 0) -> str | None:
    """Where a value is not JSON, and what it is; None: it is fit."""
    if value is None or isinstance(value, str | bool | int):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{where} is {value}"
    if nested > _NESTED_AT_MOST:
        return f"{where} is nested too deep"
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                return f"{where} has the key {name!r}, which is no text"
            if (found := _unfit(inner, f"{where}[{name!r}]", nested + 1)) is not None:
                return found
        return None
    if isinstance(value, list | tuple):
        inside = (_unfit(inner, f"{where}[{index}]", nested + 1) for index, inner in enumerate(value))
        return next((text for text in inside if text is not None), None)
    return f"{where} is {'an' if type(value).__name__[:1].lower() in 'aeiou' else 'a'} {type(value).__name__}"
