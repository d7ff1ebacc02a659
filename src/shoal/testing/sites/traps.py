"""Endless sites, whose single pages look like good ones."""

from __future__ import annotations

import calendar
import datetime
import hashlib
import itertools
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import parse_qsl, urlencode

EQUAL_PAGES: Final = 10_000
SESSION_PAGES: Final = 12
FACETS: Final = {
    name: [f"{name}{letter}" for letter in "abcde"] for name in ("colour", "size", "brand", "fabric", "cut", "price")
}
PRODUCTS: Final = 60


def trap_page(target: str) -> bytes | None:
    """The HTML of a path and query, or None outside of a trap."""
    path, _, query = target.partition("?")
    name = path[1:].partition("/")[0].partition(";")[0]
    make = _TRAPS.get(name)
    return None if make is None else make(path, query).encode()


def _page(title: str, hrefs: Iterable[str], text: str = "") -> str:
    links = "".join(f"<li><a href='{href}'>{href.rpartition('/')[2]}</a></li>" for href in hrefs)
    return f"<html><head><title>{title}</title></head><body><h1>{title}</h1><p>{text}</p><ul>{links}</ul></body></html>"


def _calendar(path: str, query: str) -> str:
    """/calendar/2031/05 and its days, without end."""
    numbers = [int(part) for part in path.split("/")[2:] if part] or [2031, 5]
    year, month = numbers[0], numbers[1]
    if len(numbers) == 3:
        day = datetime.date(year, month, numbers[2])
        beside = (day + datetime.timedelta(days=step) for step in (-1, 1))
        return _page(f"{day:%A %d %B %Y}", (f"/calendar/{day:%Y/%m/%d}" for day in beside), "No events.")
    months = (year * 12 + month - 1 + step for step in (-1, 1))
    hrefs = [f"/calendar/{number // 12:04}/{number % 12 + 1:02}" for number in months]
    days = calendar.monthrange(year, month)[1]
    hrefs += [f"/calendar/{year:04}/{month:02}/{day:02}" for day in range(1, days + 1)]
    return _page(f"{calendar.month_name[month]} {year}", hrefs, "No events.")


def _session(make: Callable[[str, int], str]) -> Callable[[str, str], str]:
    """A few pages whose links have a new session id each time."""

    def page(path: str, query: str) -> str:
        number = int(path.partition(";")[0].rpartition("-")[2] or 0) if "-" in path else 0
        ids = (hashlib.sha256(f"{path}?{query}#{index}".encode()).hexdigest() for index in itertools.count())
        links = [make(session, index) for index, session in zip(range(SESSION_PAGES), ids, strict=False)]
        shown = "".join(f"<a href='{href}'>page {index}</a>" for index, href in enumerate(links))
        return f"<html><title>page {number}</title><body>This is page {number}. {shown}</body></html>"

    return page


def _letters(text: str) -> str:
    return "".join(chr(ord("a") + int(digit, 16)) for digit in text)


def _shop(path: str, query: str) -> str:
    """A list that can be narrowed by any mix of six facets with five values each."""
    chosen = dict(parse_qsl(query))
    mixes = ({**chosen, name: value} for name, values in FACETS.items() for value in values)
    hrefs = ["/shop?" + urlencode(sorted(mix.items())).replace("&", "&amp;") for mix in mixes]
    title = "Shirts " + " ".join(chosen.values())
    fitting = [n for n in range(PRODUCTS) if all(n % 5 == ord(value[-1]) % 5 for value in chosen.values())]
    return _page(title, [*hrefs, *(f"/product/{number}" for number in fitting)], f"{len(fitting)} found")


def _equal(path: str, query: str) -> str:
    """/equal/ lists ten thousand pages, which are all the same and list more."""
    if path == "/equal/":
        return _page("An index", (f"/equal/{number}" for number in range(EQUAL_PAGES)))
    number = int(path.rpartition("/")[2])
    more = (f"<a href='/equal/{number * 2 + step}'>more</a>" for step in (1, 2))
    return f"<html><title>equal</title><body>Nothing to see here. {' '.join(more)}</body></html>"


def _product(path: str, query: str) -> str:
    """Good pages, each with its own text."""
    return _page("Product", (), f"An honest description of {path} in other words.")


_TRAPS: Final[dict[str, Callable[[str, str], str]]] = {
    "calendar": _calendar,
    "session": _session(lambda session, number: f"/session/{session[:16]}/page-{number}"),
    "letters": _session(lambda session, number: f"/letters/{_letters(session[:10])}/page-{number}"),
    "jsession": _session(lambda session, number: f"/jsession/page-{number};jsessionid={session[:32].upper()}"),
    "sid": _session(lambda session, number: f"/sid/page-{number}?sid={session[:32]}"),
    "token": _session(lambda session, number: f"/token/page-{number}?visit={session[:12]}"),
    "shop": _shop,
    "product": _product,
    "equal": _equal,
}
