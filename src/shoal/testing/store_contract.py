"""What every store promises, one test per promise. Subclass `StoreContract` and give it a fixture."""

from __future__ import annotations

import pytest

from shoal.store.base import Store
from shoal.testing.contract.store.attempt_promises import AttemptPromises
from shoal.testing.contract.store.difference_promises import DifferencePromises
from shoal.testing.contract.store.gone_promises import GonePromises
from shoal.testing.contract.store.newest_promises import NewestPromises
from shoal.testing.contract.store.outbox_promises import OutboxPromises
from shoal.testing.contract.store.read_promises import ReadPromises
from shoal.testing.contract.store.rows import Reopen, everything, fetch, files_no_larger_than, item, reopening
from shoal.testing.contract.store.rule_promises import RulePromises
from shoal.testing.contract.store.statement_promises import StatementPromises
from shoal.testing.contract.store.write_promises import WritePromises

__all__ = ["Reopen", "StoreContract", "everything", "fetch", "files_no_larger_than", "item", "reopening"]


class StoreContract(
    WritePromises,
    RulePromises,
    GonePromises,
    DifferencePromises,
    NewestPromises,
    ReadPromises,
    AttemptPromises,
    StatementPromises,
    OutboxPromises,
):
    """The promises of `Store`.

    A subclass has the fixture `reopen`: each call opens one more handle on the same store, which is empty at first
    (`reopening` makes such a fixture of a function that opens the store). At the end it closes every handle, also
    those that the test has closed already.
    """

    @pytest.fixture
    async def store(self, reopen: Reopen) -> Store:
        return await reopen()
