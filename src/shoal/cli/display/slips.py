"""Probable mistakes in a spider, from the notes of its crawl: selectors without a link, items that share a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from shoal.cli.display.lines import one_line
from shoal.cli.display.numbers import count, several
from shoal.policy.failures import FOLLOW, FOLLOWED, ITEMS, KEYLESS, SAME_KEY, UNUSED
from shoal.settings.table import Settings
from shoal.settings.values import parse_duration
from shoal.spider.follow import HREFS
from shoal.spider.page import ALL_LINKS

LINES_SHOWN = 10
KEY_SHOWN = 60


class Unmatched(msgspec.Struct, frozen=True, kw_only=True):
    """A selector of `page.follow` that found no link on any page of a handler."""

    selector: str
    handler: str
    pages: int


class Unused(msgspec.Struct, frozen=True, kw_only=True):
    """A `page.follow` whose result a handler never yielded."""

    selector: str
    handler: str
    pages: int


class SameKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key of several items on one page: on how many pages, and the URL of one of them."""

    key: str
    pages: int
    url: str


class Slips(msgspec.Struct, frozen=True, kw_only=True):
    """The probable mistakes that the summary shows.

    yielded: items from its pages. keyless: items with an empty key. rule: what the store does with equal keys."""

    yielded: int = 0
    keyless: int = 0
    unmatched: tuple[Unmatched, ...] = ()
    unused: tuple[Unused, ...] = ()
    same_keys: tuple[SameKey, ...] = ()
    rule: str = "replace"


def slips_of(notes: Mapping[str, int], settings: Settings, *, is_whole: bool = True) -> Slips:
    """The probable mistakes in a crawl's notes. is_whole: all its items are in this store."""
    # Fewer items may be stored than yielded although none was replaced.
    is_unsure = not is_whole or parse_duration(settings.freshness) > 0 or parse_duration(settings.dedup_ttl) > 0
    return Slips(
        yielded=notes.get(ITEMS, 0),
        keyless=notes.get(KEYLESS, 0),
        unmatched=tuple(sorted(_unmatched(notes), key=lambda one: (-one.pages, one.selector))),
        unused=tuple(sorted(_unused(notes), key=lambda one: (-one.pages, one.selector))),
        same_keys=tuple(sorted(_same_keys(notes), key=lambda one: (-one.pages, one.key))),
        rule="unsure" if is_unsure else settings.merge,
    )


def slip_lines(slips: Slips, *, stored: int) -> Iterator[tuple[str, str]]:
    """The mistakes for people. stored: how many items of the crawl the store has."""
    if slips.yielded > stored:
        yield "", _fewer(slips, stored)
    kept = "they are merged" if slips.rule == "fill" else "only the last is kept"
    for same in slips.same_keys[:LINES_SHOWN]:
        pages = several(same.pages, "page")
        what = f"several items with the key {one_line(same.key, KEY_SHOWN)!r} on one page ({pages}): {kept}"
        yield "same key", f"{what}, as on {same.url}"
    if len(slips.same_keys) > LINES_SHOWN:
        yield "", f"and {count(len(slips.same_keys) - LINES_SHOWN)} more keys"
    if slips.keyless:
        have = "item has" if slips.keyless == 1 else "items have"
        yield "no key", f"{count(slips.keyless)} {have} an empty key: stored under the page's URL"
    for missed in slips.unmatched[:LINES_SHOWN]:
        yield "no link", f"{missed.selector} matched on 0 of {several(missed.pages, 'page')} ({missed.handler})"
    if len(slips.unmatched) > LINES_SHOWN:
        yield "", f"and {count(len(slips.unmatched) - LINES_SHOWN)} more selectors"

    for forgotten in slips.unused[:LINES_SHOWN]:
        called = "page.follow(url=…)" if forgotten.selector == HREFS else f"page.follow({forgotten.selector!r})"
        on = several(forgotten.pages, "page")
        yield "no yield", f"{called} was called on {on} and never yielded ({forgotten.handler})"
    if len(slips.unused) > LINES_SHOWN:
        yield "", f"and {count(len(slips.unused) - LINES_SHOWN)} more calls"


def _fewer(slips: Slips, stored: int) -> str:
    number = slips.yielded - stored
    if slips.rule == "unsure":
        return f"the spider yielded {several(slips.yielded, 'item')}, the store has {count(stored)} of this crawl"
    if slips.rule == "fill":
        return f"{several(number, 'item')} merged into others with the same key"
    later = "a later one" if number == 1 else "later ones"
    return f"{several(number, 'item')} replaced by {later} with the same key"


def _unmatched(notes: Mapping[str, int]) -> Iterator[Unmatched]:
    has_followed = any(name.startswith(FOLLOWED) for name in notes)
    for name, pages in notes.items():
        pair = name.removeprefix(FOLLOW)
        if pair == name or f"{FOLLOWED}{pair}" in notes or pair.endswith(f" {HREFS}"):
            continue
        handler, _, selector = pair.partition(" ")
        # Pages without any link are normal, unless no page has one.
        if selector != ALL_LINKS or not has_followed:
            yield Unmatched(selector=selector, handler=handler, pages=pages)


def _unused(notes: Mapping[str, int]) -> Iterator[Unused]:
    for name, pages in notes.items():
        pair = name.removeprefix(UNUSED)
        # A handler that yields it on some pages chooses.
        if pair != name and f"{FOLLOW}{pair}" not in notes and f"{FOLLOWED}{pair}" not in notes:
            handler, _, selector = pair.partition(" ")
            yield Unused(selector=selector, handler=handler, pages=pages)


def _same_keys(notes: Mapping[str, int]) -> Iterator[SameKey]:
    """By key: each worker noted a different URL."""
    found: dict[str, SameKey] = {}
    for name, pages in notes.items():
        if name.startswith(SAME_KEY):
            key, _, url = name.removeprefix(SAME_KEY).rpartition(" on ")
            known = found.get(key)
            found[key] = SameKey(key=key, pages=pages + (known.pages if known else 0), url=known.url if known else url)
    yield from found.values()
