"""What every store promises, one test per promise. Subclass `StoreContract` and give it a fixture."""

from __future__ import annotations

import pytest

from shoal.store.base import Store
from shoal.testing.store_case import Reopen, everything, fetch, files_no_larger_than, item, reopening
from shoal.testing.store_read_promises import ReadPromises
from shoal.testing.store_rule_promises import RulePromises
from shoal.testing.store_statement_promises import StatementPromises
from shoal.testing.store_write_promises import WritePromises

__all__ = ["Reopen", "StoreContract", "everything", "fetch", "files_no_larger_than", "item", "reopening"]


class StoreContract(WritePromises, RulePromises, ReadPromises, StatementPromises):
    """The promises of `Store`.

    A subclass has the fixture `reopen`, which opens one more handle on the same, empty place each time it is called
    (`reopening` makes one of a way to open it). It closes what it opened, also what a test has closed already.
    """

    @pytest.fixture
    async def store(self, reopen: Reopen) -> Store:
        return await reopen()
