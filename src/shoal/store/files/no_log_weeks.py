"""Why the log of a `files:` store is not moved into an archive: it lies in files that people can move."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from shoal.errors import UsageError
from shoal.store.base import MovedPart, Put


class NoLogWeeks:
    """Keeps `LogWeeks` by refusing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def move(self, *, retention: float, archive: str, put: Put) -> AsyncIterator[int]:
        """Refuse."""
        raise UsageError(
            f"the log in files:{self._folder} is fetches-*.jsonl already, which you may copy: leave out"
            " `retention_archive`, or crawl into --store items.db or postgresql://…"
        )
        yield 0

    async def moved(self) -> list[MovedPart]:
        """Nothing."""
        return []
