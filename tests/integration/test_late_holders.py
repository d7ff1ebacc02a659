"""Processes that stand still for longer than their duty lasts, while another one takes it, notes and leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from shoal.crawl.duty_notes import change_noted, read_noted
from shoal.duties.alerts import state, watcher
from shoal.duties.alerts.config import AlertConfig, AlertRules, Target
from shoal.duties.alerts.watcher import AlertWatcher
from shoal.duties.schedules import orders, scheduler
from shoal.duties.schedules.config import Schedule, Timing
from shoal.duties.schedules.scheduler import Scheduler, StartedRun
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.model import Crawl
from shoal.testing.clock import FakeClock

HOUR = 3600
LONG = 600.0
PRICES = Schedule(name="prices", spider="prices.py", timing=Timing(every=HOUR))


class StandsStill(SqliteFrontier):
    """A frontier whose caller stands still where it reads the crawls: `meanwhile` is what happens then, once."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def crawls(self) -> list[Crawl]:
        """The crawls, after what happens meanwhile."""
        if self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            await happens()
        return await super().crawls()


class Starts:
    """Notes the runs that it is to start."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def reference(self, spider: str) -> str:
        return f"/spiders/{spider}"

    def start_run(self, schedule: Schedule, run: str) -> StartedRun:
        self.runs.append(run)
        return Runs()


class Runs:
    """A process that goes on."""

    has_ended = False
    has_failed = False
    last_line = ""
    log_file = ""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(10.0 * HOUR - 1)


@pytest.fixture
async def late(tmp_path: Path, clock: FakeClock) -> AsyncIterator[StandsStill]:
    opened = await StandsStill.open(tmp_path / "shoal.db", clock=clock)
    assert isinstance(opened, StandsStill)
    yield opened
    await opened.close()


@pytest.fixture
async def other(tmp_path: Path, clock: FakeClock, late: StandsStill) -> AsyncIterator[SqliteFrontier]:
    opened = await SqliteFrontier.open(tmp_path / "shoal.db", clock=clock)
    yield opened
    await opened.close()


def keeper(clock: FakeClock, starts: Starts) -> Scheduler:
    return Scheduler({"prices": PRICES}, starter=starts, place="shoal.db", say=lambda _: None, clock=clock)


async def test_a_coordinator_that_stood_still_starts_nothing_and_keeps_what_another_one_has_noted(
    late: StandsStill, other: SqliteFrontier, clock: FakeClock
) -> None:
    late_starts, other_starts = Starts(), Starts()
    first, second = keeper(clock, late_starts), keeper(clock, other_starts)
    assert await first.look(late)
    clock.advance(1.0)

    async def another_one_takes_over() -> None:
        clock.advance(LONG)
        assert await second.look(other)
        clock.advance(1.0)
        await second.look(other)
        await second.finish(other)

    async def noted() -> orders.Notes:
        return orders.read_notes((await read_noted(other, scheduler.DUTY))[1])

    late.meanwhile = another_one_takes_over
    assert not await first.look(late)
    assert (late_starts.runs, len(other_starts.runs)) == ([], 0)
    found = await noted()
    assert [entry.state for entry in found.states["prices"].history] == ["missed"]
    assert await first.look(late)
    assert await noted() == found


async def test_a_watchman_that_stood_still_overwrites_nothing(
    late: StandsStill, other: SqliteFrontier, clock: FakeClock
) -> None:
    rules, target = AlertRules(dead_letters=0), Target(name="ops", kind="command", command=("true",))
    config = AlertConfig(rules=rules, targets=(target,), every=1.0, hold=0.0)
    watches = AlertWatcher(config, frontier=late, say=lambda _: None, clock=clock)
    newer = msgspec.json.encode(state.Notes(watched=("news-1",)))

    async def another_one_takes_over() -> None:
        clock.advance(LONG)
        assert (await other.hold_duty(watcher.DUTY, "other", seconds=30.0, notes=newer)).is_ours
        await other.hold_duty(watcher.DUTY, "other", seconds=0.0)

    late.meanwhile = another_one_takes_over
    await watches.look()
    assert await read_noted(other, watcher.DUTY) == (False, newer)


async def test_a_change_that_another_one_has_overtaken_is_made_once_more(
    late: StandsStill, other: SqliteFrontier, clock: FakeClock
) -> None:
    seen: list[bytes] = []

    def change(noted: bytes) -> bytes:
        seen.append(noted)
        if len(seen) == 1:
            clock.advance(LONG)
        return noted + b"+"

    await change_noted(other, "d", lambda _: b"first", busy="it is busy")
    held = await other.hold_duty("d", "z", seconds=0.0)

    class Overtaken:
        """The frontier of whoever is late: another one changes the notes before the first change is written."""

        async def hold_duty(self, *args: object, **named: object) -> object:
            if named.get("notes") is not None and len(seen) == 1 and (await read_noted(other, "d"))[1] == held.notes:
                await change_noted(other, "d", lambda noted: noted + b" second", busy="it is busy")
            return await late.hold_duty(*args, **named)  # type: ignore[arg-type]  # passed on as they come

    assert await change_noted(Overtaken(), "d", change, busy="it is busy") == b"first second+"  # type: ignore[arg-type]  # only this verb is used
    assert seen == [b"first", b"first second"]
