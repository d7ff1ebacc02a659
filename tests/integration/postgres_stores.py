"""Opening stores on a PostgreSQL server, for the tests of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from shoal.errors import ShoalError
from shoal.store import open_store
from shoal.store.postgres.store import PostgresStore

Open = Callable[..., Awaitable[PostgresStore]]


async def refusal(url: str) -> ShoalError:
    """The error of opening this URL: one line, without the password."""
    with pytest.raises(ShoalError) as caught:
        await open_store(url)
    line = str(caught.value)
    assert "\n" not in line
    assert "s3cr3t" not in line
    assert caught.value.__cause__ is None
    return caught.value
