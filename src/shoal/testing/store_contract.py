"""The promises of every store, one test each. Subclass `StoreContract` and give it a fixture."""

from __future__ import annotations

import pytest

from shoal.store.base import Store
from shoal.testing.contract.store.gone_promises import DifferencePromises, GonePromises
from shoal.testing.contract.store.outbox_promises import OutboxPromises
from shoal.testing.contract.store.read_promises import AttemptPromises, NewestPromises, ReadPromises
from shoal.testing.contract.store.rows import Reopen, everything, fetch, files_no_larger_than, item, reopening
from shoal.testing.contract.store.rule_promises import RulePromises
from shoal.testing.contract.store.view_promises import StatementPromises
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
    (`reopening` makes such a fixture from a function that opens the store). At the end it closes every handle, also
    handles that a test has closed."""

    @pytest.fixture
    async def store(self, reopen: Reopen) -> Store:
        return await reopen()
