"""Turns the output of a handler into items and tasks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from shoal.journey.intake import Found, Intake
from shoal.page import Follow, Page
from shoal.spider import Item, Request


class KeyedItem(msgspec.Struct, frozen=True):
    """An item ready for the store: its key, and its fields as JSON."""

    key: str
    data: bytes


class Harvest:
    """Collects the items and tasks of one page."""

    __slots__ = ("_intake", "_item_key", "_keyless", "_page", "found", "items", "unstorable")

    def __init__(self, page: Page, *, intake: Intake, item_key: str) -> None:
        self.found = Found()
        self.items: list[KeyedItem] = []
        self.unstorable: list[tuple[str, str]] = []  # keys of items that cannot be written as JSON, and why
        self._page = page
        self._intake = intake
        self._item_key = item_key
        self._keyless = 0

    def add(self, output: Any) -> None:
        """Take in one output of the handler."""
        if output is None:
            return
        if isinstance(output, Follow):
            self._intake.follow(output, self.found)
        elif isinstance(output, Request):
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
        if key is None and self._item_key:
            key = fields.get(self._item_key)
        name = self._page_key() if key is None or key == "" else str(key)
        data = _encoded(fields)
        if isinstance(data, str):
            self.unstorable.append((name, data))
        else:
            self.items.append(KeyedItem(name, data))

    def _page_key(self) -> str:
        """The page's URL; the second and later items without a key get a number, or they would replace each other."""
        self._keyless += 1
        return self._page.url if self._keyless == 1 else f"{self._page.url}#{self._keyless}"


def is_item(output: Any) -> bool:
    """Whether this is one item, even though it may be iterable."""
    return isinstance(output, Mapping | msgspec.Struct) or dataclasses.is_dataclass(output) or _is_model(output)


def fields_of(output: Any) -> Mapping[str, Any]:
    """The fields of a mapping, dataclass, msgspec struct or pydantic model."""
    if isinstance(output, Mapping):
        return output
    if isinstance(output, msgspec.Struct):
        return msgspec.structs.asdict(output)
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return dataclasses.asdict(output)
    if _is_model(output):
        return dict(output.model_dump(mode="json"))
    raise TypeError(
        f"a handler may yield requests, items, mappings, dataclasses, pydantic models and msgspec structs, "
        f"not {type(output).__name__}"
    )


def _encoded(fields: Mapping[str, Any]) -> bytes | str:
    """The fields as JSON; or, as text, why they have no JSON: an exception would try the page again in vain."""
    try:
        data = msgspec.json.encode(fields, enc_hook=_plain)
    except UnicodeEncodeError:
        return f"half of a surrogate pair in {_first(fields, _is_half)}"
    except RecursionError:
        return "its fields are nested too deep"
    # The encoder writes NaN and infinity as null: the fields are searched only if there is a null.
    where = _first(fields, _is_not_finite) if b"null" in data else ""
    return f"a number that is not finite in {where}" if where else data


def _first(value: Any, is_meant: Callable[[Any], bool], path: str = "") -> str:
    """The path of the first such value, as field.field; empty when there is none."""
    if is_meant(value):
        return path or "its fields"
    for name, part in _parts(value):
        if isinstance(name, str) and is_meant(name):
            return f"the name of a field of {path or 'its own'}"
        found = _first(part, is_meant, f"{path}.{name}" if path else str(name))
        if found:
            return found
    return ""


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if is_item(value):
        return fields_of(value).items()
    return enumerate(value) if isinstance(value, list | tuple | set | frozenset) else ()


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _is_half(value: Any) -> bool:
    return isinstance(value, str) and not value.isascii() and value != value.encode("utf-8", "replace").decode()


def _is_model(output: Any) -> bool:
    return hasattr(output, "model_dump") and not isinstance(output, type)


def _plain(value: Any) -> Any:
    """A value that JSON has no type for: a mapping or model as its fields, anything else as its text."""
    if isinstance(value, Mapping):
        return dict(value)
    return value.model_dump(mode="json") if _is_model(value) else str(value)
