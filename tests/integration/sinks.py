"""Messages for sinks, and what receivers make of them, for the tests of sinks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from shoal.sinks.base import Message


def message(number: int, *, version: int = 1, **fields: Any) -> Message:
    """A message about the item with this number."""
    given: dict[str, Any] = {
        "id": f"books/{number}/{version}",
        "spider": "books",
        "key": str(number),
        "version": version,
        "change": "new" if version == 1 else "changed",
        "at": 100.5,
        "url": f"https://a.test/{number}",
        "crawl": "books-1",
        "item": msgspec.Raw(json.dumps({"n": number}).encode()),
    }
    return Message(**(given | fields))


def check_delivery(received: Iterable[dict[str, Any]], *, expected: dict[str, int]) -> None:
    """Every change came at least once, and those of an item in order: a repeat begins at an earlier version and runs
    through again. `expected` has the last version of each key."""
    seen: dict[str, int] = {}
    last: dict[str, int] = {}
    for one in received:
        key, version = one["key"], one["version"]
        highest = seen.get(key, 0)
        assert version <= highest + 1, f"{key}: version {version} came before {highest + 1}"
        assert version <= highest or version == last.get(key, 0) + 1
        seen[key], last[key] = max(highest, version), version
        assert one["id"] == f"{one['spider']}/{key}/{version}"
    assert seen == expected
