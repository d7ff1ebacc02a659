"""An account's cookies by RFC 6265: sent only to the site that set them."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

import msgspec
from publicsuffixlist import PublicSuffixList

MAX_PAIR: Final = 4096
MAX_ATTRIBUTE: Final = 1024
MAX_PER_ANSWER: Final = 50
MAX_PER_SITE: Final = 60
MAX_COOKIES: Final = 300
LONGEST_LIFE: Final = 400 * 86_400.0

_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_DATE_WORDS: Final = re.compile(r"[^\x09\x20-\x2f\x3b-\x40\x5b-\x60\x7b-\x7e]+")
_TIME: Final = re.compile(r"(\d{1,2}):(\d{1,2}):(\d{1,2})(?!\d)")
_DAY: Final = re.compile(r"(\d{1,2})(?!\d)")
_YEAR: Final = re.compile(r"(\d{2,4})(?!\d)")
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


class Cookie(msgspec.Struct, frozen=True, kw_only=True):
    """One cookie. `expires` is None for a session cookie; `is_host_only`: not for subdomains."""

    name: str
    value: str
    domain: str
    path: str
    is_host_only: bool
    is_secure: bool
    created: float
    expires: float | None = None


class CookieJar:
    """The cookies of one account, in the order they were made."""

    def __init__(self, cookies: list[Cookie] | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._cookies = {_identity(cookie): cookie for cookie in cookies or ()}

    def __len__(self) -> int:
        return len(self._cookies)

    def take(self, url: str, set_cookie: str | None) -> None:
        """Keep the cookies of an answer from `url`; its Set-Cookie headers are given one a line."""
        if not set_cookie:
            return
        now = self._clock()
        for line in set_cookie.split("\n")[:MAX_PER_ANSWER]:
            cookie = read_cookie(line, url=url, now=now)
            if cookie is not None:
                self._keep(cookie, url=url, now=now)
        self._trim(now)

    def header(self, url: str) -> str:
        """The Cookie header for a request to `url`; empty when no cookie is for it."""
        parts, now = urlsplit(url), self._clock()
        host, path = (parts.hostname or "").lower(), parts.path or "/"
        fitting = [
            cookie
            for cookie in self._cookies.values()
            if (cookie.expires is None or cookie.expires > now)
            and (not cookie.is_secure or parts.scheme == "https")
            and (host == cookie.domain or (not cookie.is_host_only and _is_below(host, cookie.domain)))
            and _is_under(path, cookie.path)
        ]
        fitting.sort(key=lambda cookie: (-len(cookie.path), cookie.created))
        return "; ".join(f"{cookie.name}={cookie.value}" for cookie in fitting)

    def dump(self) -> bytes:
        """All cookies as bytes."""
        return msgspec.msgpack.encode(list(self._cookies.values()))

    @classmethod
    def load(cls, data: bytes, *, clock: Callable[[], float] = time.time) -> CookieJar:
        """The jar that was dumped; no bytes make an empty jar."""
        return cls(msgspec.msgpack.decode(data, type=list[Cookie]) if data else None, clock=clock)

    def _keep(self, cookie: Cookie, *, url: str, now: float) -> None:
        identity = _identity(cookie)
        before = self._cookies.get(identity)
        if before is not None:
            if before.is_secure and not url.startswith("https:"):
                return  # an attacker on the line could answer over plain HTTP and replace it
            cookie = msgspec.structs.replace(cookie, created=before.created)
        if cookie.expires is not None and cookie.expires <= now:
            self._cookies.pop(identity, None)
        else:
            self._cookies[identity] = cookie

    def _trim(self, now: float) -> None:
        """Drop expired cookies, and the oldest ones above the limits."""
        per_site: dict[str, int] = {}
        kept: list[Cookie] = []
        for cookie in sorted(self._cookies.values(), key=lambda cookie: cookie.created)[::-1]:
            if cookie.expires is not None and cookie.expires <= now:
                continue
            site = site_of(cookie.domain)
            per_site[site] = per_site.get(site, 0) + 1
            if per_site[site] <= MAX_PER_SITE and len(kept) < MAX_COOKIES:
                kept.append(cookie)
        self._cookies = {_identity(cookie): cookie for cookie in reversed(kept)}


def site_of(host: str) -> str:
    """The registered domain of a host name (shop.example.co.uk: example.co.uk); else the host itself."""
    if _is_address(host):
        return host
    return _suffixes().privatesuffix(host) or host


def read_cookie(line: str, *, url: str, now: float) -> Cookie | None:
    """The cookie of a Set-Cookie header from `url`; None if it must be refused."""
    pair, *rest = line.split(";")
    name, equals, value = (part.strip() for part in pair.partition("="))
    if not equals or not name or len(name) + len(value) > MAX_PAIR or _CONTROL.search(pair) or not pair.isascii():
        return None
    attributes = dict(_attributes(rest))
    parts = urlsplit(url)
    host, is_secure = (parts.hostname or "").lower(), "secure" in attributes
    domain = _domain(attributes.get("domain", ""), host=host)
    path = attributes.get("path", "")
    cookie = Cookie(
        name=name,
        value=value,
        domain=domain or host,
        path=path if path.startswith("/") else _default_path(parts.path),
        is_host_only=not domain,
        is_secure=is_secure,
        created=now,
        expires=_expires(attributes, now),
    )
    refused = domain is None or (is_secure and parts.scheme != "https") or not _keeps_its_prefix(cookie)
    return None if refused else cookie


def _attributes(parts: list[str]) -> Iterator[tuple[str, str]]:
    """The attributes with their names in lower case; of several with one name the last counts."""
    for part in parts:
        name, _, value = part.partition("=")
        if len(value) <= MAX_ATTRIBUTE:
            yield name.strip().lower(), value.strip()


def _domain(text: str, *, host: str) -> str | None:
    """The domain that a cookie is for; empty: its host alone; None: the host may not set cookies for that domain."""
    domain = text.lower().removeprefix(".")
    if not domain:
        return ""
    if domain == host and (_is_address(host) or _is_suffix(host)):
        return ""
    if domain != host and not _is_below(host, domain):
        return None
    # Else every site under .co.uk or github.io would get it.
    return None if _is_suffix(domain) else domain


def _keeps_its_prefix(cookie: Cookie) -> bool:
    name = cookie.name.lower()
    if name.startswith("__host-"):
        return cookie.is_secure and cookie.is_host_only and cookie.path == "/"
    return cookie.is_secure or not name.startswith("__secure-")


def _expires(attributes: dict[str, str], now: float) -> float | None:
    age = attributes.get("max-age", "")
    if re.fullmatch(r"-?\d{1,18}", age):
        return min(now + int(age), now + LONGEST_LIFE) if int(age) > 0 else 0.0
    date = _date(attributes.get("expires", ""))
    return None if date is None else min(date, now + LONGEST_LIFE)


def _date(text: str) -> float | None:
    """A cookie's date, read as leniently as browsers do; None if it is no date."""
    hour = day = month = year = None
    minute = second = 0
    for word in _DATE_WORDS.findall(text[:100]):
        if hour is None and (found := _TIME.match(word)):
            hour, minute, second = (int(part) for part in found.groups())
        elif day is None and (found := _DAY.match(word)):
            day = int(found[1])
        elif month is None and word[:3].lower() in _MONTHS:
            month = _MONTHS.index(word[:3].lower()) + 1
        elif year is None and (found := _YEAR.match(word)):
            year = int(found[1])
    if hour is None or day is None or month is None or year is None:
        return None
    year += 1900 if 70 <= year <= 99 else 2000 if year < 70 else 0
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None


def _default_path(path: str) -> str:
    folder = path.rpartition("/")[0]
    return folder if folder.startswith("/") else "/"


def _is_under(path: str, folder: str) -> bool:
    return path == folder or (path.startswith(folder) and (folder.endswith("/") or path[len(folder)] == "/"))


def _is_below(host: str, domain: str) -> bool:
    return host.endswith(f".{domain}") and not _is_address(host)


def _is_suffix(domain: str) -> bool:
    # The list knows no names with a dot at the end.
    name = domain.rstrip(".")
    return _suffixes().publicsuffix(name) == name


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _identity(cookie: Cookie) -> tuple[str, str, str]:
    return cookie.domain, cookie.path, cookie.name


@lru_cache(maxsize=1)
def _suffixes() -> PublicSuffixList:
    """The list inside the package. It takes 0.1 s to read, and only crawls with accounts need it."""
    return PublicSuffixList()
