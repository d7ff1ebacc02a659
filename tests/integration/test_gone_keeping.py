"""A serving process marks items that are gone: one of several, in time, and only while somebody visits pages."""

from __future__ import annotations

from pathlib import Path

import msgspec

from shoal.crawl.inbox import Inbox, NoInbox
from shoal.crawl.opening import Places
from shoal.crawl.record import CrawlRecord
from shoal.errors import StorageError
from shoal.frontier.base import Frontier
from shoal.model import Crawl, CrawlState, Heartbeat
from shoal.serve.access import Access
from shoal.serve.duties import DUTY_SECONDS, GoneKeeping
from shoal.serve.parts import Connection, Parts
from shoal.serve.spiders import Spiders
from shoal.settings.table import Settings
from shoal.store import open_store
from shoal.store.base import ScrapedPage, Store
from shoal.testing.clock import FakeClock
from shoal.testing.contract.store.rows import item
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.testing.memory_store import MemoryStore

HOUR = 3600.0
CRAWL = "books-1"
WORKER = Heartbeat(worker="w", crawl=CRAWL, host="h", pid=1, version="0", slots=1)


class ReadOnlyStore(MemoryStore):
    """A store whose role may not change items."""

    async def mark_gone(
        self, spider: str, *, at: float, missing_before: float | None = None, unseen_since: float | None = None
    ) -> int:
        raise StorageError("PostgreSQL refuses: permission denied for table items")


class Stage:
    """A crawl that visits its pages again, and a store that misses one item since now."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.frontier = MemoryFrontier(clock=self.clock)
        self.said: list[str] = []
        self._places = Places(frontier=str(folder / "shoal.db"), store=str(folder / "results.db"))

    async def begin(self, revisit: str) -> None:
        record = CrawlRecord(settings=Settings(revisit=revisit))
        await self.frontier.open_crawl(Crawl(id=CRAWL, spider="books", settings=msgspec.to_builtins(record)))
        store, now = await open_store(self._places.store), self.clock()
        await store.write([item("k", at=now - 10)], [])
        await store.write([], [], pages=[ScrapedPage(spider="books", url="https://a.test/k", keys=(), at=now)])
        await store.close()

    def parts(self) -> Parts:
        """Those of one more serving process."""

        async def opened() -> Frontier:
            return self.frontier

        async def without_inbox() -> Inbox:
            return NoInbox()

        return Parts(
            places=self._places,
            frontier=Connection("the frontier", opened),
            inbox=Connection("the inboxes", without_inbox),
            access=Access(),
            spiders=Spiders(None, self._places),
        )

    def keeping(self, parts: Parts) -> GoneKeeping:
        return GoneKeeping(parts, say=self.said.append, clock=self.clock, steady=self.clock.steady)

    async def pass_time(self, seconds: float, *keepings: GoneKeeping, works: bool = True) -> None:
        """Time passes, somebody works or nobody does, and these processes look."""
        self.clock.advance(seconds)
        if works:
            await self.frontier.beat(WORKER)
        for keeping in keepings:
            await keeping.look()

    async def gone_after(self) -> float | None:
        """How long the item was missing when it went; None: it is not gone."""
        store = await open_store(self._places.store)
        (found,) = [one async for one in store.items()]
        await store.close()
        return None if found.gone_at is None else found.gone_at - found.last_seen - 10


async def test_one_of_two_processes_marks_what_was_missing_for_as_long_as_all_pages_take(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.begin("24h")
    one, other = stage.parts(), stage.parts()
    keepings = (stage.keeping(one), stage.keeping(other))
    await stage.pass_time(23 * HOUR, *keepings)
    assert await stage.gone_after() is None
    await stage.pass_time(HOUR + 1.0, *keepings)
    assert await stage.gone_after() == 24 * HOUR + 1.0
    assert stage.said == ["1 item of books gone from the site: `shoal diff` shows them"]
    await stage.pass_time(HOUR, *keepings)
    assert len(stage.said) == 1
    await one.close()
    await other.close()


async def test_another_process_goes_on_when_the_one_with_the_duty_is_gone(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.begin("20s")
    first, second = stage.keeping(stage.parts()), stage.keeping(parts := stage.parts())
    await stage.pass_time(1.0, first, second)
    await stage.pass_time(DUTY_SECONDS - 1.0, second)
    assert await stage.gone_after() is None
    await stage.pass_time(2.0, second)
    assert await stage.gone_after() == DUTY_SECONDS + 2.0
    await second.finish()
    assert (await stage.frontier.hold_duty("gone", "third", seconds=1.0)).is_ours
    await parts.close()


async def test_nothing_goes_while_nobody_works_or_the_crawl_is_paused_or_visits_pages_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.begin("1h")
    keeping = stage.keeping(parts := stage.parts())
    await stage.pass_time(5 * HOUR, keeping, works=False)
    assert await stage.gone_after() is None
    await stage.frontier.set_state(CRAWL, CrawlState.PAUSED)
    await stage.pass_time(5 * HOUR, keeping)
    assert await stage.gone_after() is None
    await stage.begin("")
    await stage.frontier.set_state(CRAWL, CrawlState.RUNNING)
    await stage.pass_time(5 * HOUR, keeping)
    assert await stage.gone_after() is None
    await stage.begin("1h")
    await stage.pass_time(5 * HOUR, keeping)
    assert await stage.gone_after() is not None
    await parts.close()


async def test_a_store_that_may_only_be_read_is_told_of_once_and_not_taken_for_one_that_is_away(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.begin("1h")
    parts = stage.parts()

    async def opened() -> Store:
        return ReadOnlyStore()

    parts.stores[parts.places.store] = Connection("the store", opened)
    keeping = stage.keeping(parts)
    for _ in range(3):
        await stage.pass_time(HOUR, keeping)
    refusal = "PostgreSQL refuses: permission denied for table items"
    assert stage.said == [f"items of books-1 that are gone cannot be marked: {refusal}; trying again"]
    assert parts.problems() == []
    await parts.close()
