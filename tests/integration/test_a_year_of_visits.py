"""A year of visits by a clock that the test moves, where local clocks change twice: no visit is lost, early or late."""

from __future__ import annotations

import datetime
import itertools
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shoal.frontier.base import Frontier
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.journey.results import Finished
from shoal.journey.revisits import RevisitRule, Revisits
from shoal.model import Crawl, Done, Lease, LeaseBatch, Visit
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import make_task

pytestmark = pytest.mark.full

CRAWL = "year"
HOUR, DAY = 3600.0, 86_400.0
BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp()
CLOCK_CHANGES = [
    datetime.datetime(2026, month, day, 1, tzinfo=datetime.UTC).timestamp() for month, day in ((3, 29), (10, 25))
]
# Nobody works in July.
STOPS, GOES_ON = 181 * DAY, 212 * DAY
FIXED = RevisitRule(DAY)
FOLLOWING = RevisitRule(2 * DAY, DAY, 14 * DAY)
# The pages of the crawl by their keys. In a crawl with bounds the first ones follow how often the page changes.
STILL, BUSY, SECOND_DAY, WEEKLY, ONCE = 1, 2, 3, 4, 5
ASKED = {SECOND_DAY: 2 * DAY, WEEKLY: 7 * DAY, ONCE: 0.0}


@pytest.fixture(autouse=True)
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The clocks of this process change on the last Sundays of March and October."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    for change in CLOCK_CHANGES:
        assert time.localtime(change - 1).tm_isdst != time.localtime(change).tm_isdst
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(BEGIN)


@pytest.fixture
async def frontier(clock: FakeClock, tmp_path: Path) -> AsyncIterator[Frontier]:
    opened = await SqliteFrontier.open(tmp_path / "shoal.db", clock=clock, steady=clock.steady)
    yield opened
    await opened.close()


class Year:
    """A worker that does each page in the second in which it is due, for a year."""

    def __init__(self, frontier: Frontier, clock: FakeClock, rule: RevisitRule) -> None:
        self.frontier = frontier
        self.clock = clock
        self.visits: dict[int, list[float]] = defaultdict(list)
        self._revisits = Revisits(rule, clock=clock)
        self._due: dict[int, float] = {}
        self._steps = 0

    async def begin(self) -> None:
        await self.frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=100))
        tasks = [make_task(key) for key in (STILL, BUSY)]
        tasks += [make_task(key, visit=Visit(asked=asked)) for key, asked in ASKED.items()]
        await self.frontier.put(CRAWL, tasks)
        await self.work()

    async def work_until(self, end: float) -> None:
        """Work on, from one visit that is due to the next."""
        while min(self._due.values()) <= BEGIN + end:
            self.clock.advance(math.ceil(min(self._due.values())) - self.clock())
            await self.work()
        self.clock.advance(BEGIN + end - self.clock())

    async def work(self) -> None:
        """Do what is due now."""
        leases = (await self._lease()).leases
        await self.frontier.settle([self._visited(lease) for lease in leases])
        self._steps += 1
        if self._steps % 10 != 1:
            return
        progress = await self.frontier.progress(CRAWL)
        assert progress.known == 2 + len(ASKED)
        assert (progress.queued, progress.leased, progress.done) == (0, 0, 1)
        assert (await self._lease()).leases == []

    async def _lease(self) -> LeaseBatch:
        return await self.frontier.lease([CRAWL], 100, worker="w", seconds=60.0, horizon=0.0)

    def _visited(self, lease: Lease) -> Done:
        task, now = lease.task, self.clock()
        self.visits[task.key].append(now - BEGIN)
        harvest = 1 + int(now // (20 * HOUR)) if task.key == BUSY else 1
        result = Done(lease=lease)
        if self._revisits.concern(task):
            finished = self._revisits.after(Finished(result, harvest=harvest)).result
            assert isinstance(finished, Done)
            result = finished
            self._due[task.key] = now + result.again_in
        return result

    def gaps(self, key: int) -> list[float]:
        """The times between the visits of a page."""
        return [later - before for before, later in itertools.pairwise(self.visits[key])]


async def test_pages_are_visited_after_the_same_seconds_all_year_whatever_local_clocks_do(
    frontier: Frontier, clock: FakeClock
) -> None:
    year = Year(frontier, clock, FIXED)
    await year.begin()
    await year.work_until(365 * DAY)
    assert {key: len(visits) for key, visits in year.visits.items()} == {
        STILL: 366, BUSY: 366, SECOND_DAY: 183, WEEKLY: 53, ONCE: 1,
    }  # fmt: skip
    assert set(year.gaps(STILL)) == set(year.gaps(BUSY)) == {86_400.0}
    assert (set(year.gaps(SECOND_DAY)), set(year.gaps(WEEKLY))) == ({2 * DAY}, {7 * DAY})
    # At the same hour of UTC, so that the hour of a local clock moves with it.
    assert {time.localtime(BEGIN + at).tm_hour for at in year.visits[STILL]} == {1, 2}
    assert (await frontier.progress(CRAWL)).visits == 366 + 366 + 183 + 53


async def test_after_a_month_of_standstill_each_page_is_visited_once_and_then_as_before(
    frontier: Frontier, clock: FakeClock
) -> None:
    year = Year(frontier, clock, FOLLOWING)
    await year.begin()
    await year.work_until(STOPS)
    before = {key: visits[-1] for key, visits in year.visits.items()}
    clock.advance(GOES_ON - STOPS)
    await year.work()
    visited_pages = {key: visits[-1] for key, visits in year.visits.items() if key != ONCE}
    assert visited_pages == dict.fromkeys((STILL, BUSY, SECOND_DAY, WEEKLY), GOES_ON)
    await year.work_until(365 * DAY)
    assert len(year.visits[ONCE]) == 1
    bounds = {STILL: (DAY, 14 * DAY), BUSY: (DAY, 14 * DAY), SECOND_DAY: (2 * DAY,) * 2, WEEKLY: (7 * DAY,) * 2}
    for key, (shortest, longest) in bounds.items():
        away = year.visits[key].index(before[key])
        others = [gap for index, gap in enumerate(year.gaps(key)) if index != away]
        # The test does what is due at the next whole second.
        assert shortest <= min(others) <= max(others) <= longest + 1.0
    assert year.gaps(STILL)[:4] == [2 * DAY, 4 * DAY, 8 * DAY, 14 * DAY]
    assert year.gaps(STILL)[-3:] == [14 * DAY] * 3
    assert max(year.gaps(BUSY)[-50:]) < 2 * DAY
