"""The promises every frontier keeps, one test each: the suite that proves a backend.

Subclass `FrontierContract` and let pytest (with pytest-asyncio in auto mode) collect the subclass:

    class TestMyFrontier(FrontierContract):
        async def open(self, folder, clock):
            return await MyFrontier.open(folder / "my.db", clock=clock)
"""

from __future__ import annotations

from shoal.testing.frontier_account_promises import AccountPromises
from shoal.testing.frontier_control_promises import ControlPromises
from shoal.testing.frontier_exit_promises import ExitPromises
from shoal.testing.frontier_lease_promises import LeasePromises
from shoal.testing.frontier_pool_promises import PoolPromises
from shoal.testing.frontier_put_promises import PutPromises
from shoal.testing.frontier_settle_promises import SettlePromises
from shoal.testing.frontier_ttl_promises import TtlPromises


class FrontierContract(
    PutPromises,
    LeasePromises,
    SettlePromises,
    ExitPromises,
    AccountPromises,
    PoolPromises,
    ControlPromises,
    TtlPromises,
):
    """All of them."""
