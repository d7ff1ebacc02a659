"""A frontier for tests of other parts: SQLite in memory, without a thread or a file."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.model import LeaseBatch

T = TypeVar("T")


class MemoryFrontier(SqliteFrontier):
    """Made without `open`, gone with its last reference. Every verb runs at once, in the caller's thread.

    `monotonic` is the clock of `LeaseBatch.at`."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        steady: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(":memory:", clock=clock, steady=steady)
        self._monotonic = monotonic
        self._connect()
        weakref.finalize(self, self._db.close)

    async def lease(self, crawls: Sequence[str], limit: int, **terms: Any) -> LeaseBatch:
        batch = await super().lease(crawls, limit, **terms)
        return msgspec.structs.replace(batch, at=self._monotonic())

    async def close(self) -> None:
        """Does nothing: a test may read the frontier after the tested part has closed it."""

    async def _run(self, work: Callable[[], T]) -> T:
        return work()
