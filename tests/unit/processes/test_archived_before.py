"""Which earlier crawls a new one may ask for their archived pages again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal import Spider
from shoal.crawl.beginning import MOST_BEFORE, archived_before
from shoal.crawl.code import source_of
from shoal.crawl.opening import Places
from shoal.crawl.places import ResultPlaces, remember
from shoal.crawl.record import describe_crawl, record_of
from shoal.model import Crawl, CrawlState
from shoal.settings.table import Settings


class Shop(Spider):
    start = "https://shop.test/"


class Former:
    """Crawls of a spider in a folder, which kept their pages in `pages`."""

    def __init__(self, folder: Path) -> None:
        for name in ("results.db", "other.db"):
            (folder / name).touch()
        for name in ("pages", "elsewhere"):
            (folder / name).mkdir()
        self.folder = folder
        self.reference = str(folder / "shop.py")
        Path(self.reference).write_text("")

    def places(self, store: str = "results.db", archive: str | None = "pages") -> Places:
        kept = None if archive is None else str(self.folder / archive)
        return Places(frontier=str(self.folder / "shoal.db"), store=str(self.folder / store), archive=kept)

    def crawl(
        self,
        number: int = 1,
        *,
        state: CrawlState = CrawlState.FINISHED,
        archive: str | None = "pages",
        **settings: Any,
    ) -> Crawl:
        places = self.places(archive=archive)
        kept = None if places.archive is None else remember(places.archive)
        crawl = describe_crawl(
            f"shop-{number}",
            Shop(),
            settings=Settings(**settings),
            pools={},
            reference=self.reference,
            source=source_of(self.reference, frontier=places.frontier),
            results=ResultPlaces(store=remember(places.store), archive=kept),
        )
        return msgspec.structs.replace(crawl, state=state)

    def before(self, *crawls: Crawl, places: Places | None = None, **settings: Any) -> tuple[str, ...]:
        return archived_before(
            crawls, settings=Settings(**settings), reference=self.reference, places=places or self.places()
        )


@pytest.fixture
def former(tmp_path: Path) -> Former:
    return Former(tmp_path)


def test_the_newest_ended_crawls_with_their_pages_here(former: Former) -> None:
    crawls = [former.crawl(number, rate="9/s") for number in range(9, 0, -1)]
    crawls[1] = former.crawl(8, state=CrawlState.CANCELLED)
    assert former.before(*crawls) == ("shop-9", "shop-8", "shop-7")
    assert MOST_BEFORE == 3


@pytest.mark.parametrize(
    "crawl",
    [
        {"archive": None},
        {"archive": "elsewhere"},
        {"state": CrawlState.PAUSED},
        {"user_agent": "another"},
        {"cookies": "off"},
        {"pool": "direct"},
    ],
)
def test_not_those_with_other_places_or_other_requests(former: Former, crawl: dict[str, Any]) -> None:
    assert former.before(former.crawl(**crawl)) == ()


def test_none_for_a_crawl_that_archives_nothing_logs_elsewhere_or_is_told_not_to_ask(former: Former) -> None:
    crawl = former.crawl()
    assert former.before(crawl) == ("shop-1",)
    assert former.before(crawl, places=former.places(archive=None)) == ()
    assert former.before(crawl, places=former.places(store="other.db")) == ()
    assert former.before(crawl, conditional_requests=False) == ()


def test_a_crawl_that_is_resumed_keeps_them(former: Former) -> None:
    described = partial(describe_crawl, "shop-2", Shop(), settings=Settings(), reference=former.reference, pools={})
    resumed = described(former=described(before=("shop-1",)))
    assert record_of(resumed).before == ("shop-1",)
