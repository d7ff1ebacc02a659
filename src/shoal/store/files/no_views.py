"""Why a `files:` store has no views of its own: its index may be deleted at any time."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from pathlib import Path

from shoal.errors import UsageError
from shoal.store.item_views import ItemView, ViewCount


class NoViews:
    """Keeps `Views` by refusing: there is nothing here that would last."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def all(self) -> list[ItemView]:
        """None."""
        return []

    async def make(self, view: ItemView) -> None:
        """Refuse."""
        raise self._refusal(view.spider)

    async def fill(self, name: str) -> AsyncIterator[int]:
        """Refuse."""
        raise self._refusal(name)
        yield 0

    async def count(self, name: str) -> ViewCount:
        """Refuse."""
        raise self._refusal(name)

    async def drop(self, name: str) -> bool:
        """There is none."""
        return False

    def _refusal(self, spider: str) -> UsageError:
        url = f"files:{self._folder}"
        export = f"shoal export --spider {shlex.quote(spider)} -o items.parquet --store {shlex.quote(url)}"
        return UsageError(
            f"{url} has no database of its own to keep a view in: write `{export}`, which has a column for each field,"
            " or crawl into --store items.db or postgresql://…"
        )
