"""Which crawl a spider's run begins or resumes, and what --fresh discards."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shoal import Spider
from shoal.cli import crawl, demo
from shoal.crawl.beginning import RunOf, begin, begin_afresh
from shoal.crawl.opening import Places
from shoal.crawl.record import Origin, describe_crawl, next_id, record_of, spider_of, with_priority
from shoal.errors import UsageError
from shoal.model import Crawl, CrawlState
from shoal.settings.table import Settings
from shoal.spider.loading import load_spider
from shoal.testing.clock import FakeClock
from shoal.testing.contract.store.rows import item
from shoal.testing.fakes import task_for
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.testing.memory_store import MemoryStore

PLACES = Places(frontier="shoal.db", store="shoal.db")


class Books(Spider):
    start = "https://a.test/"


@pytest.fixture
def frontier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryFrontier:
    monkeypatch.chdir(tmp_path)  # no shoal.toml
    return MemoryFrontier(clock=FakeClock())


async def test_an_unfinished_crawl_is_resumed_with_the_settings_as_they_are_now(frontier: MemoryFrontier) -> None:
    first, former = await begin(frontier, Books(), settings=Settings(rate="1/s"), reference="books.py")
    assert (first.id, former) == ("books-1", None)
    await frontier.put("books-1", [task_for("https://a.test/")])
    await frontier.set_state("books-1", CrawlState.PAUSED)
    again, former = await begin(frontier, Books(), settings=Settings(rate="2/s"), reference="books.py")
    assert former is not None
    assert (again.id, former.id, former.state) == ("books-1", "books-1", CrawlState.PAUSED)
    assert (record_of(former).settings.rate, record_of(again).settings.rate) == ("1/s", "2/s")
    progress = await frontier.progress("books-1")
    assert (progress.state, progress.feeding, progress.known) == (CrawlState.RUNNING, True, 1)


async def test_a_fresh_crawl_discards_the_unfinished_one_and_takes_an_id_of_its_own(frontier: MemoryFrontier) -> None:
    await frontier.open_crawl(Crawl(id="other-1", spider="other"))
    await begin(frontier, Books(), settings=Settings(), reference="books.py")
    run = RunOf(reference="books.py", places=PLACES)
    crawl = await begin_afresh(frontier, MemoryStore(), Books(), places=PLACES, settings=Settings(), run=run)
    assert crawl.id == "books-2"
    assert {crawl.id for crawl in await frontier.crawls()} == {"other-1", "books-2"}


async def test_a_fresh_crawl_whose_settings_are_refused_discards_nothing(frontier: MemoryFrontier) -> None:
    await begin(frontier, Books(), settings=Settings(), reference="books.py")
    wrong = msgspec.structs.replace(Settings(), pool="nowhere")
    with pytest.raises(UsageError, match="nowhere"):
        await begin_afresh(
            frontier,
            MemoryStore(),
            Books(),
            places=PLACES,
            settings=wrong,
            run=RunOf(reference="books.py", places=PLACES),
        )
    assert [crawl.id for crawl in await frontier.crawls()] == ["books-1"]


async def test_a_new_crawl_has_an_id_that_the_store_has_no_items_of(frontier: MemoryFrontier) -> None:
    """They come from a frontier that is lost, or from another one that shares the store."""
    store = MemoryStore()
    rows = [("a", "books", "books-1"), ("b", "books", "books-7"), ("c", "films", "films-30")]
    await store.write([item(key, spider=spider, crawl=crawl) for key, spider, crawl in rows], [])
    first, _ = await begin(frontier, Books(), settings=Settings(), reference="books.py", store=store)
    assert first.id == "books-8"
    await store.write([item("d", spider="books", crawl="books-9")], [])
    fresh = await begin_afresh(
        frontier, store, Books(), places=PLACES, settings=Settings(), run=RunOf(reference="books.py", places=PLACES)
    )
    assert fresh.id == "books-10"


def test_ids_count_on_from_the_highest_number_of_the_spiders_own_crawls() -> None:
    crawls = [Crawl(id="a-9", spider="a"), Crawl(id="a-10", spider="a"), Crawl(id="b-70", spider="b")]
    assert next_id("a", crawls) == "a-11"
    assert next_id("c", crawls) == "c-1"
    assert spider_of("crawl-a.test-12") == "crawl-a.test"


@pytest.mark.parametrize("reference", ["shoal.spider.generic:SitePages", "shoal.cli.demo_spider:Shop"])
def test_references_that_crawls_in_the_wild_remember_still_load(reference: str) -> None:
    """Crawls keep these texts: worker processes of a crawl that is resumed load its spider by them."""
    assert reference in (crawl.REFERENCE, demo.REFERENCE)
    assert load_spider(reference).__name__ == reference.partition(":")[2]


def test_the_weight_at_shared_hosts_may_change_whenever_a_crawl_is_opened() -> None:
    def described(settings: Settings, former: Crawl | None = None) -> Crawl:
        origin = Origin(reference="books.py")
        return describe_crawl("books-1", Books(), settings=settings, origin=origin, pools={}, former=former)

    first = described(Settings())
    assert (first.weight, first.pace_scope) == (1.0, "host")
    heavier = described(Settings(weight=2.5, pace_scope="crawl"), first)
    assert (heavier.weight, heavier.pace_scope) == (2.5, "crawl")
    # What a priority makes of it is for the frontier to reckon.
    assert (with_priority(heavier, 1).weight, with_priority(heavier, 1).priority) == (2.5, 1)
    assert described(Settings(weight=2.0, priority=1), heavier).weight == 2.0
