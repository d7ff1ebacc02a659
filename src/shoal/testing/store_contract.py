"""What every store promises, one test per promise. Subclass `StoreContract` and give it two fixtures."""

from __future__ import annotations

from shoal.testing.store_case import Reopen, everything, fetch, files_no_larger_than, item
from shoal.testing.store_read_promises import ReadPromises
from shoal.testing.store_rule_promises import RulePromises
from shoal.testing.store_statement_promises import StatementPromises
from shoal.testing.store_write_promises import WritePromises

__all__ = ["Reopen", "StoreContract", "everything", "fetch", "files_no_larger_than", "item"]


class StoreContract(WritePromises, RulePromises, ReadPromises, StatementPromises):
    """The promises of `Store`.

    A subclass has two fixtures: `store`, open and empty, and `reopen`, which opens one more handle on the same
    place each time it is called. The fixtures close what they opened, also what a test has closed already.
    """
