"""A site that misbehaves, and a fetcher that may go to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fetch_checks import SETTINGS

from shoal.fetch.http import HttpFetcher
from shoal.testing.sites.hostile import HostileSite


@pytest.fixture
async def site() -> AsyncIterator[HostileSite]:
    async with HostileSite(pause=0.02) as site:
        yield site


@pytest.fixture
async def fetcher() -> AsyncIterator[HttpFetcher]:
    fetcher = HttpFetcher(SETTINGS)
    yield fetcher
    await fetcher.close()
