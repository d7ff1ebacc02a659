"""The promises every frontier keeps, one test each: the suite that proves a backend.

Subclass `FrontierContract` and let pytest (with pytest-asyncio in auto mode) collect the subclass:

    class TestMyFrontier(FrontierContract):
        async def open(self, folder, clock, steady=None):
            return await MyFrontier.open(folder / "my.db", clock=clock, steady=steady)

A backend that keeps tasks and points as bytes also says how one is damaged: see `BadRecordPromises.damage` and
`HistoryPromises.write_unreadable_point`.
"""

from __future__ import annotations

from shoal.testing.contract.frontier.account_promises import AccountPromises
from shoal.testing.contract.frontier.bad_record_promises import BadRecordPromises
from shoal.testing.contract.frontier.clock_promises import ClockPromises
from shoal.testing.contract.frontier.control_promises import ControlPromises
from shoal.testing.contract.frontier.delay_promises import DelayPromises
from shoal.testing.contract.frontier.exit_promises import ExitPromises
from shoal.testing.contract.frontier.feeding_promises import FeedingPromises
from shoal.testing.contract.frontier.held_promises import HeldPromises
from shoal.testing.contract.frontier.history_promises import HistoryPromises
from shoal.testing.contract.frontier.host_promises import HostPromises
from shoal.testing.contract.frontier.kind_promises import KindPromises
from shoal.testing.contract.frontier.known_promises import KnownPromises
from shoal.testing.contract.frontier.landing_promises import LandingPromises
from shoal.testing.contract.frontier.lease_promises import LeasePromises
from shoal.testing.contract.frontier.legacy_promises import LegacyPromises
from shoal.testing.contract.frontier.life_promises import LifePromises
from shoal.testing.contract.frontier.lost_promises import LostPromises
from shoal.testing.contract.frontier.offer_promises import OfferPromises
from shoal.testing.contract.frontier.pool_promises import PoolPromises
from shoal.testing.contract.frontier.put_promises import PutPromises
from shoal.testing.contract.frontier.reason_promises import ReasonPromises
from shoal.testing.contract.frontier.settle_promises import SettlePromises
from shoal.testing.contract.frontier.stage_promises import StagePromises
from shoal.testing.contract.frontier.stop_promises import StopPromises
from shoal.testing.contract.frontier.ttl_promises import TtlPromises
from shoal.testing.contract.frontier.turn_promises import TurnPromises
from shoal.testing.contract.frontier.visit_promises import VisitPromises


class FrontierContract(
    PutPromises,
    DelayPromises,
    KnownPromises,
    LifePromises,
    LeasePromises,
    LandingPromises,
    LostPromises,
    ClockPromises,
    SettlePromises,
    ExitPromises,
    AccountPromises,
    PoolPromises,
    OfferPromises,
    HostPromises,
    TurnPromises,
    LegacyPromises,
    HeldPromises,
    ControlPromises,
    StopPromises,
    FeedingPromises,
    TtlPromises,
    HistoryPromises,
    KindPromises,
    StagePromises,
    VisitPromises,
    ReasonPromises,
    BadRecordPromises,
):
    """All of them."""
