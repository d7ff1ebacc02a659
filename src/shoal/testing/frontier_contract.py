"""The promises of every frontier, one test each: the suite that proves a backend.

Subclass `FrontierContract` and let pytest (with pytest-asyncio in auto mode) collect the subclass:

    class TestMyFrontier(FrontierContract):
        async def open(self, folder, clock, steady=None):
            return await MyFrontier.open(folder / "my.db", clock=clock, steady=steady)

A backend that stores tasks and points as bytes also implements `BadRecordPromises.damage` and
`HistoryPromises.write_unreadable_point`."""

from __future__ import annotations

from shoal.testing.contract.frontier.clock_promises import ClockPromises
from shoal.testing.contract.frontier.control_promises import ControlPromises, HeldPromises
from shoal.testing.contract.frontier.exit_promises import ExitPromises
from shoal.testing.contract.frontier.feeding_promises import FeedingPromises
from shoal.testing.contract.frontier.history_promises import HistoryPromises
from shoal.testing.contract.frontier.host_promises import HostPromises, TurnPromises
from shoal.testing.contract.frontier.kind_promises import KindPromises, StagePromises
from shoal.testing.contract.frontier.landing_promises import LandingPromises
from shoal.testing.contract.frontier.lease_promises import DelayPromises, LeasePromises
from shoal.testing.contract.frontier.life_promises import BadRecordPromises, LifePromises
from shoal.testing.contract.frontier.lost_promises import LegacyPromises, LostPromises
from shoal.testing.contract.frontier.offer_promises import OfferPromises
from shoal.testing.contract.frontier.pool_promises import AccountPromises, PoolPromises
from shoal.testing.contract.frontier.put_promises import KnownPromises, PutPromises
from shoal.testing.contract.frontier.settle_promises import ReasonPromises, SettlePromises
from shoal.testing.contract.frontier.stop_promises import StopPromises
from shoal.testing.contract.frontier.ttl_promises import TtlPromises
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
    """All promises."""
