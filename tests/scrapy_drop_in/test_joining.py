"""How a Scrapy process finds its crawl."""

from __future__ import annotations

from pathlib import Path

from shoal.integrations.scrapy.crawl_of_spider import ScrapyCrawl, join
from shoal.processes.opening import Places, frontier_at, store_at
from shoal.settings import Settings


async def test_the_store_of_a_new_crawl_is_made_before_others_see_the_crawl(tmp_path: Path) -> None:
    places = Places(frontier=str(tmp_path / "frontier.db"), store=str(tmp_path / "items.db"), archive=None)
    wanted = ScrapyCrawl(spider="pages", places=places, settings=Settings(), arguments={}, requests_at_once=1)
    made = []
    async with frontier_at(places.frontier) as frontier:

        async def make_store(store: str) -> None:
            assert await frontier.crawls() == []
            async with store_at(store):
                made.append(store)

        assert (await join(wanted, frontier=frontier, make_store=make_store)).is_new
        assert not (await join(wanted, frontier=frontier, make_store=make_store)).is_new
    assert made == [places.store]
