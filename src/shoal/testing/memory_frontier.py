"""A frontier for tests of other parts: SQLite's, in memory, without a thread or a file of its own."""

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
    """Made without `open`, and gone when nobody refers to it. Every verb runs at once, in the caller's thread.

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
        """Nothing: a test may look at the frontier after the part that it tests has closed it."""

    async def _run(self, work: Callable[[], T]) -> T:
        return work()
