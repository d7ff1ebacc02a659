"""What is done to a store beside a crawl: old lines of the log are dropped, or moved into an archive before, and old
contents of items are dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from shoal.errors import ShoalError
from shoal.processes.outages import until_reachable
from shoal.settings.table import Settings
from shoal.settings.values import parse_duration
from shoal.store.base import Store
from shoal.text.errors import several

EVERY_SECONDS: Final = 3600.0

Say = Callable[[str], None]


class Retention:
    """Does what the settings of a crawl say about old data in its store."""

    def __init__(self, store: Store, settings: Settings, *, spider: str, say: Say) -> None:
        self._store = store
        self._spider = spider
        self._say = say
        self._versions = parse_duration(settings.versions_retention)
        self._retention = parse_duration(settings.retention)
        self._archive = settings.retention_archive
        self._troubles: dict[str, str] = {}

    async def run(self) -> None:
        """At once and then every hour, until cancelled."""
        while self._retention or self._versions:
            if self._retention:
                tidy = partial(self._store.tidy, retention=self._retention)
                await self._try(self._move_log if self._archive else tidy, "old weeks of the log")
            if self._versions:
                tidy = partial(self._store.tidy_versions, self._spider, retention=self._versions)
                await self._try(tidy, "old contents of items")
            await asyncio.sleep(EVERY_SECONDS)

    async def _try(self, step: Callable[[], Awaitable[object]], what: str) -> None:
        """What cannot be done is said once, and tried again: crawls do not suffer."""
        trouble = ""
        try:
            await until_reachable(step, say=self._say)
        except ShoalError as error:
            trouble = str(error)
            if trouble != self._troubles.get(what):
                self._say(f"{what} stay in the store: {trouble}")
        self._troubles[what] = trouble

    async def _move_log(self) -> None:
        from shoal.results.log_files import move_log

        moved = 0
        try:
            async for lines in move_log(self._store, self._archive, retention=self._retention, say=self._say):
                moved += lines
        finally:
            if moved:
                self._say(f"{several(moved, 'log line')} moved to {self._archive}")
