"""Collects the output of a page's handler: items for the store, tasks for the frontier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.errors import UsageError
from shoal.journey.intake import Found, HandlerNames, Intake, PlainRequests
from shoal.journey.item_fields import NoJson, described, encoded, fields_of, key_text
from shoal.spider.follow import Follow, Iteration
from shoal.spider.page import Page
from shoal.spider.spider import Item, Request
from shoal.text.near_names import did_you_mean

FIELDS_NAMED = 12


class KeyedItem(msgspec.Struct, frozen=True):
    """An item ready for the store: its key, and its fields as JSON."""

    key: str
    data: bytes


class Harvest:
    """The items and tasks of one page.

    - `unstorable`: keys of items that cannot be written as JSON, and why
    - `keyless`: number of items whose key is empty: their key is the page's URL
    - `notes`: counts for the summary of the crawl
    - `problem`: the fault of an unreadable sitemap
    - `stop`: the reason of a handler that raised StopCrawl; empty: none did
    """

    __slots__ = (
        "_found",
        "_intake",
        "_item_key",
        "_names",
        "_page",
        "_plain",
        "_without_key",
        "items",
        "keyless",
        "notes",
        "problem",
        "stop",
        "unstorable",
    )

    def __init__(self, page: Page, *, intake: Intake, item_key: str, names: HandlerNames | None = None) -> None:
        self._found = Found()
        self.items: list[KeyedItem] = []
        self.unstorable: list[tuple[str, str]] = []
        self.keyless = 0
        self.notes: dict[str, int] = {}
        self.problem = ""
        self.stop = ""
        self._page = page
        self._intake = intake
        self._item_key = item_key
        self._names = names or HandlerNames(None)
        self._plain = PlainRequests(self._names)
        self._without_key = 0

    @property
    def has_unused_follow(self) -> bool:
        """Whether the result of a `page.follow` was neither yielded nor iterated."""
        return bool(self._page.unused_follows)

    @property
    def found(self) -> Found:
        """The tasks found so far, and the rejected URLs."""
        self.take_in()
        return self._found

    def take_in(self) -> None:
        """Take in the plain requests that were kept for later."""
        if self._plain.urls:
            self._intake.requests_of_page(self._plain, self._page, self._found)
            self._plain.clear()

    def add(self, output: Any) -> None:
        """Take in one output of the handler. Errors of a request are raised at once, also if it is kept for later."""
        if output is None or (type(output) is Request and self._plain.take(output)):
            return
        if isinstance(output, Request):
            self._names.check(output.handler)
            self._intake.request_of_page(output, self._page, self.found)
        elif isinstance(output, Follow):
            self._names.check(output.handler)
            self._intake.follow(output, self.found)
        elif isinstance(output, Item):
            self._add_item(output.key, output)
        else:
            self._add_item(None, fields_of(output))

    def add_whole(self, iteration: Iteration) -> bool:
        """Take in all links of a `page.follow` at once; False: the requests must be taken in one by one."""
        self._names.check(iteration.follow.handler)
        iteration.is_taken = self._intake.follow_iterated(iteration, self.found)
        return iteration.is_taken

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
        """The page's URL; with a number from the second item on, or the items would replace each other."""
        self._without_key += 1
        self.keyless += is_named
        return self._page.url if self._without_key == 1 else f"{self._page.url}#{self._without_key}"


def _no_such_field(name: str, fields: Mapping[str, Any]) -> UsageError:
    meant = did_you_mean(name, map(str, fields))
    hint = f": {meant}" if meant else "; an item of another kind needs a key of its own: Item(key=…)"
    has = f"it has {', '.join(list(map(str, fields))[:FIELDS_NAMED])}" if fields else "it has none at all"
    return UsageError(f"item_key {name!r}: the item has no such field; {has}{hint}")
