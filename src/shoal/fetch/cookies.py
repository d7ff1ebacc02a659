"""A cookie jar by RFC 6265bis: cookies are sent only to the site that set them.

Bytes beyond ASCII are kept as Latin-1 characters, as headers are read, and sent as the same bytes."""

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
MAX_SITE_BYTES: Final = 64 * 1024
ALWAYS_KEPT: Final = 10  # so few cookies cannot exceed any limit
HOSTS_REMEMBERED: Final = 4096
LONGEST_LIFE: Final = 400 * 86_400.0

_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_BLANKS: Final = " \t"  # no other white space: a byte of a name may look like it
_AGE: Final = re.compile(r"-?[0-9]+")
_DATE_WORDS: Final = re.compile(r"[^\x09\x20-\x2f\x3b-\x40\x5b-\x60\x7b-\x7e]+")
_TIME: Final = re.compile(r"(\d{1,2}):(\d{1,2}):(\d{1,2})(?!\d)")
_DAY: Final = re.compile(r"(\d{1,2})(?!\d)")
_YEAR: Final = re.compile(r"(\d{2,4})(?!\d)")
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


class Cookie(msgspec.Struct, frozen=True, kw_only=True):
    """One cookie; its name may be empty. `expires` is None for a session cookie; `is_host_only`: not for subdomains."""

    name: str
    value: str
    domain: str
    path: str
    is_host_only: bool
    is_secure: bool
    created: float
    expires: float | None = None

    @property
    def pair(self) -> str:
        """The cookie as it is sent."""
        return f"{self.name}={self.value}" if self.name else self.value

    @property
    def size(self) -> int:
        """Its bytes, with domain and path."""
        return len(self.name) + len(self.value) + len(self.domain) + len(self.path)


class CookieJar:
    """The cookies of one visitor, in order of creation."""

    def __init__(self, cookies: list[Cookie] | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._cookies = {_identity(cookie): cookie for cookie in cookies or ()}

    def __len__(self) -> int:
        return len(self._cookies)

    @property
    def size(self) -> int:
        """The bytes of all cookies."""
        return sum(cookie.size for cookie in self._cookies.values())

    def take(self, url: str, set_cookie: str | None) -> bool:
        """Keep the cookies of a response from `url`; returns whether later requests differ.

        set_cookie: its Set-Cookie headers, one per line."""
        if not set_cookie:
            return False
        now, has_new = self._clock(), False
        for line in set_cookie.split("\n")[:MAX_PER_ANSWER]:
            cookie = read_cookie(line, url=url, now=now)
            if cookie is not None and self._keep(cookie, url=url, now=now):
                has_new = True
        if len(self._cookies) > ALWAYS_KEPT or any(_is_over(cookie, now) for cookie in self._cookies.values()):
            self._trim(now)
        return has_new

    def header(self, url: str) -> str:
        """The Cookie header for a request to `url`; empty: no cookie matches."""
        parts, now = urlsplit(url), self._clock()
        host, path = (parts.hostname or "").lower(), parts.path or "/"
        fitting = [
            cookie
            for cookie in self._cookies.values()
            if not _is_over(cookie, now)
            and (not cookie.is_secure or parts.scheme == "https")
            and (host == cookie.domain or (not cookie.is_host_only and _is_below(host, cookie.domain)))
            and _is_under(path, cookie.path)
        ]
        fitting.sort(key=lambda cookie: (-len(cookie.path), cookie.created))
        return as_text("; ".join(cookie.pair for cookie in fitting))

    def values(self) -> list[str]:
        """The values of all cookies, to be masked as secrets."""
        return [as_text(cookie.value) for cookie in self._cookies.values() if cookie.value]

    def dump(self) -> bytes:
        """All cookies as bytes."""
        return msgspec.msgpack.encode(list(self._cookies.values()))

    @classmethod
    def load(cls, data: bytes, *, clock: Callable[[], float] = time.time) -> CookieJar:
        """The dumped jar; empty bytes make an empty jar."""
        return cls(msgspec.msgpack.decode(data, type=list[Cookie]) if data else None, clock=clock)

    def _keep(self, cookie: Cookie, *, url: str, now: float) -> bool:
        """Keep a cookie, or drop it if the new one has expired; returns whether another value is sent from now on."""
        if not url.startswith("https:") and any(_would_hide(cookie, other) for other in self._cookies.values()):
            return False  # else an attacker could replace a secure cookie by a response over plain HTTP
        identity = _identity(cookie)
        before = self._cookies.get(identity)
        if _is_over(cookie, now):
            self._cookies.pop(identity, None)
            return before is not None
        self._cookies[identity] = cookie if before is None else msgspec.structs.replace(cookie, created=before.created)
        return before is None or before.value != cookie.value

    def _trim(self, now: float) -> None:
        """Drop expired cookies, and the oldest ones above the limits."""
        number: dict[str, int] = {}
        size: dict[str, int] = {}
        kept: list[Cookie] = []
        for cookie in sorted(self._cookies.values(), key=lambda cookie: cookie.created)[::-1]:
            if _is_over(cookie, now):
                continue
            site = site_of(cookie.domain)
            number[site] = number.get(site, 0) + 1
            size[site] = size.get(site, 0) + cookie.size
            if number[site] <= MAX_PER_SITE and size[site] <= MAX_SITE_BYTES and len(kept) < MAX_COOKIES:
                kept.append(cookie)
        self._cookies = {_identity(cookie): cookie for cookie in reversed(kept)}


def as_text(value: str) -> str:
    """A header's text for sending the same bytes: decoded as UTF-8, with a surrogate for each invalid byte."""
    return value if value.isascii() else value.encode("latin-1", "replace").decode("utf-8", "surrogateescape")


@lru_cache(maxsize=HOSTS_REMEMBERED)
def site_of(host: str) -> str:
    """The registered domain of a host name (shop.example.co.uk: example.co.uk); else the host itself."""
    if _is_address(host):
        return host
    return _suffixes().privatesuffix(host) or host


def read_cookie(line: str, *, url: str, now: float) -> Cookie | None:
    """The cookie of a Set-Cookie header from `url`; None: it must be refused."""
    pair, *rest = line.split(";")
    name, equals, value = (part.strip(_BLANKS) for part in pair.partition("="))
    if not equals:
        name, value = "", name
    if not (name or value) or len(name) + len(value) > MAX_PAIR or _CONTROL.search(line):
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
    refused = domain is None or (is_secure and parts.scheme != "https") or not _keeps_its_prefix(cookie, path)
    return None if refused else cookie


def _attributes(parts: list[str]) -> Iterator[tuple[str, str]]:
    """The attributes, names in lower case; of several with one name the last counts."""
    for part in parts:
        name, _, value = part.partition("=")
        if len(value) <= MAX_ATTRIBUTE:
            yield name.strip(_BLANKS).lower(), value.strip(_BLANKS)


def _domain(text: str, *, host: str) -> str | None:
    """The domain of a cookie; empty: only its host; None: the host may not set cookies for that domain."""
    domain = text.lower().removeprefix(".")
    if not domain:
        return ""
    if not domain.isascii():
        return None
    if domain == host and (_is_address(host) or _is_suffix(host)):
        return ""
    if domain != host and not _is_below(host, domain):
        return None
    # A public suffix: every site under .co.uk or github.io would get it.
    return None if _is_suffix(domain) else domain


def _keeps_its_prefix(cookie: Cookie, path: str) -> bool:
    """Whether the cookie fulfils its name's prefix (__Host-, __Secure-); without a name, its value may have none.

    path: its Path attribute."""
    name = cookie.name.lower()
    if not name:
        return not cookie.value.lower().startswith(("__host-", "__secure-"))
    if name.startswith("__host-"):
        return cookie.is_secure and cookie.is_host_only and path == "/"
    return cookie.is_secure or not name.startswith("__secure-")


def _would_hide(cookie: Cookie, other: Cookie) -> bool:
    """Whether a cookie set over plain HTTP would be sent instead of a secure one."""
    return (
        other.is_secure
        and cookie.name == other.name
        and (
            cookie.domain == other.domain
            or _is_below(cookie.domain, other.domain)
            or _is_below(other.domain, cookie.domain)
        )
        and _is_under(cookie.path, other.path)
    )


def _expires(attributes: dict[str, str], now: float) -> float | None:
    age = attributes.get("max-age", "")
    if _AGE.fullmatch(age):
        return now + min(int(age[:18]), LONGEST_LIFE) if int(age[:18]) > 0 else 0.0
    date = _date(attributes.get("expires", ""))
    return None if date is None else min(date, now + LONGEST_LIFE)


def _date(text: str) -> float | None:
    """A cookie's date, parsed as leniently as in browsers; None: no date."""
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


@lru_cache(maxsize=HOSTS_REMEMBERED)
def _is_suffix(domain: str) -> bool:
    # The list has no names with a dot at the end.
    name = domain.rstrip(".")
    return _suffixes().publicsuffix(name) == name


@lru_cache(maxsize=HOSTS_REMEMBERED)
def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _is_over(cookie: Cookie, now: float) -> bool:
    return cookie.expires is not None and cookie.expires <= now


def _identity(cookie: Cookie) -> tuple[str, str, str]:
    return cookie.domain, cookie.path, cookie.name


@lru_cache(maxsize=1)
def _suffixes() -> PublicSuffixList:
    """The package's list. Reading it takes 0.1 s, and only crawls with cookies need it."""
    return PublicSuffixList()
