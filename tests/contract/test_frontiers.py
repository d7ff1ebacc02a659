"""Every frontier of shoal keeps the contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shoal.frontier.base import Frontier
from shoal.frontier.sqlite import SqliteFrontier
from shoal.testing.frontier_contract import FrontierContract
from shoal.testing.memory_frontier import MemoryFrontier


class TestSqliteFrontier(FrontierContract):
    async def open(self, folder: Path, clock: Callable[[], float]) -> Frontier:
        return await SqliteFrontier.open(folder / "shoal.db", clock=clock)


class TestMemoryFrontier(FrontierContract):
    _frontier: MemoryFrontier | None = None

    async def open(self, folder: Path, clock: Callable[[], float]) -> Frontier:
        self._frontier = self._frontier or MemoryFrontier(clock=clock)
        return self._frontier
