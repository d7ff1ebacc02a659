"""Turns the output of a handler into items and tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from shoal.errors import UsageError
from shoal.journey.intake import Found, Intake
from shoal.journey.item_fields import NoJson, described, encoded, fields_of, key_text
from shoal.near_names import did_you_mean
from shoal.page import Follow, Page
from shoal.spider import Item, Request, Spider, check_handler, handler_name

FIELDS_NAMED = 12


class KeyedItem(msgspec.Struct, frozen=True):
    """An item ready for the store: its key, and its fields as JSON."""

    key: str
    data: bytes


class HandlerNames:
    """The handlers of one spider. A name is looked up once."""

    __slots__ = ("_known", "_spider")

    def __init__(self, spider: Spider) -> None:
        self._spider = spider
        self._known: set[str] = set()

    def check(self, handler: Callable[..., Any] | str | None) -> None:
        """Refuse a handler that the spider does not have, where a request names it."""
        name = "parse" if handler is None else handler_name(handler)
        if name not in self._known:
            check_handler(self._spider, name)
            self._known.add(name)


class Harvest:
    """Collects the items and tasks of one page.

    - `unstorable`: keys of items that cannot be written as JSON, and why
    - `keyless`: how many items have an empty key, and so the page's URL instead
    - `notes`: what the summary of the crawl counts
    - `problem`: what could not be read of a sitemap
    """

    __slots__ = (
        "_intake",
        "_item_key",
        "_names",
        "_page",
        "_without_key",
        "found",
        "items",
        "keyless",
        "notes",
        "problem",
        "unstorable",
    )

    def __init__(self, page: Page, *, intake: Intake, item_key: str, names: HandlerNames | None = None) -> None:
        self.found = Found()
        self.items: list[KeyedItem] = []
        self.unstorable: list[tuple[str, str]] = []
        self.keyless = 0
        self.notes: dict[str, int] = {}
        self.problem = ""
        self._page = page
        self._intake = intake
        self._item_key = item_key
        self._names = names
        self._without_key = 0

    @property
    def has_unused_follow(self) -> bool:
        """Whether the handler called `page.follow` and nobody has looked at the links."""
        return bool(self._page.unused_follows)

    def add(self, output: Any) -> None:
        """Take in one output of the handler."""
        if output is None:
            return
        if isinstance(output, Follow):
            if self._names is not None:
                self._names.check(output.handler)
            self._intake.follow(output, self.found)
        elif isinstance(output, Request):
            if self._names is not None:
                self._names.check(output.handler)
            self._add_request(output)
        elif isinstance(output, Item):
            self._add_item(output.key, output)
        else:
            self._add_item(None, fields_of(output))

    def _add_request(self, request: Request) -> None:
        if len(self.found.tasks) >= self._intake.settings.max_links:
            self.found.reject("too_many_links", request.url)
        else:
            hrefs, base = self._page.rooted([request.url])
            for href in hrefs:  # none, if the URL leads to no other page
                asked = request if href == request.url else msgspec.structs.replace(request, url=href)
                self._intake.request(asked, self.found, parent=self._page.task, base=base)

    def _add_item(self, key: Any, fields: Mapping[str, Any]) -> None:
        is_named = key is not None
        if key is None and self._item_key:
            if self._item_key not in fields:
                raise _no_such_field(self._item_key, fields)
            key, is_named = fields[self._item_key], True
        try:
            name = self._page_key(is_named=is_named) if key is None or key == "" else key_text(key)
        except NoJson as error:
            self.unstorable.append((self._page.url, f"its key is {described(error.value)}"))
            return
        data = encoded(fields)
        if isinstance(data, str):
            self.unstorable.append((name, data))
        else:
            self.items.append(KeyedItem(name, data))

    def _page_key(self, *, is_named: bool) -> str:
        """The page's URL; the second and later items without a key get a number, or they would replace each other."""
        self._without_key += 1
        self.keyless += is_named
        return self._page.url if self._without_key == 1 else f"{self._page.url}#{self._without_key}"


def _no_such_field(name: str, fields: Mapping[str, Any]) -> UsageError:
    meant = did_you_mean(name, map(str, fields))
    hint = f": {meant}" if meant else "; an item of another kind needs a key of its own: Item(key=…)"
    has = f"it has {', '.join(list(map(str, fields))[:FIELDS_NAMED])}" if fields else "it has none at all"
    return UsageError(f"item_key {name!r}: the item has no such field; {has}{hint}")
