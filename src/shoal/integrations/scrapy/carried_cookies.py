"""Cookies that travel with a request: the process that does it may not be the one that logged in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from http.cookiejar import Cookie
from typing import Any

import msgspec
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.utils.httpobj import urlparse_cached

from shoal.model import Task

COOKIES = "cookies"  # of a task's meta


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    name: str
    value: str | None
    domain: str
    path: str
    is_secure: bool
    expires: int | None


class _Carried(msgspec.Struct, frozen=True, array_like=True):
    process: str
    cookies: list[_Kept]


class CarriedCookies:
    """Gives each request the cookies that its jar has for its host, and puts them into the jar of another process. Of
    two that carry the same cookie, the request that was found later counts."""

    def __init__(self, crawler: Crawler) -> None:
        self._middleware = crawler.get_downloader_middleware(CookiesMiddleware)
        self._process = os.urandom(8).hex()
        self._at: dict[tuple[Any, str, str, str], float] = {}

    def of(self, request: Request) -> dict[str, bytes]:
        """What a task keeps of the request's jar; nothing where the jar has no cookies for its host."""
        jar_name = request.meta.get("cookiejar")
        if self._middleware is None or jar_name not in self._middleware.jars:
            return {}
        host = (urlparse_cached(request).hostname or "").lower()
        cookies = [
            _Kept(cookie.name, cookie.value, cookie.domain, cookie.path, cookie.secure, cookie.expires)
            for cookie in self._middleware.jars[jar_name]
            if f".{host}".endswith(f".{cookie.domain.removeprefix('.')}")
        ]
        return {COOKIES: msgspec.msgpack.encode(_Carried(self._process, cookies))} if cookies else {}

    def bring(self, task: Task, request: Request) -> None:
        """Put the cookies of a task into the request's jar, where another process has found it."""
        packed = (task.meta or {}).get(COOKIES)
        if packed is None or self._middleware is None:
            return
        carried = msgspec.msgpack.decode(packed, type=_Carried)
        if carried.process == self._process:
            # The jar has these, or newer ones.
            return
        jar_name = request.meta.get("cookiejar")
        jar = self._middleware.jars[jar_name]
        for kept in carried.cookies:
            place = (jar_name, kept.domain, kept.path, kept.name)
            if self._at.get(place, 0.0) < task.created:
                self._at[place] = task.created
                jar.set_cookie(Cookie(**_fields(kept)))


def _fields(kept: _Kept) -> Mapping[str, Any]:
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
