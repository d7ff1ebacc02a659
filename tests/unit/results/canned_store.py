"""A store that streams given items, and the names in the folder that they are exported to."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from shoal.store.base import ItemFilter, StoredItem
from shoal.testing.memory_store import MemoryStore


class CannedStore(MemoryStore):
    """Streams the given items; an exception among them is raised at its place."""

    def __init__(self, *steps: dict[str, Any] | BaseException) -> None:
        super().__init__()
        self._steps = steps

    async def items(self, which: ItemFilter = ItemFilter()) -> AsyncIterator[StoredItem]:
        for number, step in enumerate(self._steps):
            if isinstance(step, BaseException):
                raise step
            yield StoredItem(
                spider="s",
                key=f"k{number}",
                crawl="c",
                url=f"https://a.test/{number}",
                data=msgspec.json.encode(step),
                first_seen=1.0,
                last_seen=1.0,
                changed_at=1.0,
            )


def names_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))
