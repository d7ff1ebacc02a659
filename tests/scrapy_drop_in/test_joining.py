"""How a Scrapy process finds its crawl."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from shoal.crawl.opening import Places, frontier_at, store_at
from shoal.model import Heartbeat
from shoal.scrapy.crawl import JoinedCrawl, ScrapyCrawl, join
from shoal.settings.table import Settings
from shoal.worker.machine import this_machine


async def test_the_store_of_a_new_crawl_is_made_before_others_see_the_crawl(tmp_path: Path) -> None:
    places = Places(frontier=str(tmp_path / "frontier.db"), store=str(tmp_path / "items.db"), archive=None)
    wanted = ScrapyCrawl(spider="pages", places=places, settings=Settings(), arguments={}, requests_at_once=1)
    made = []
    async with frontier_at(places.frontier) as frontier:

        async def make_store(store: str) -> None:
            assert await frontier.crawls() == []
            async with store_at(store):
                made.append(store)

        assert (await join(wanted, frontier=frontier, make_store=make_store, say=print)).is_new
        assert not (await join(wanted, frontier=frontier, make_store=make_store, say=print)).is_new
    assert made == [places.store]


async def test_a_fresh_start_discards_no_crawl_on_which_others_work(tmp_path: Path) -> None:
    places = Places(frontier=str(tmp_path / "frontier.db"), store=str(tmp_path / "items.db"), archive=None)
    wanted = ScrapyCrawl(
        spider="pages", places=places, settings=Settings(), arguments={}, requests_at_once=1, fresh=True
    )
    said: list[str] = []
    async with frontier_at(places.frontier) as frontier, store_at(places.store):

        async def make_store(store: str) -> None: ...

        async def join_it() -> JoinedCrawl:
            return await join(wanted, frontier=frontier, make_store=make_store, say=said.append)

        assert (await join_it()).crawl.id == "pages-1"
        beat = Heartbeat(
            worker="w", crawl="pages-1", host="h", pid=os.getpid(), version="1", slots=1, machine=this_machine()
        )
        await frontier.beat(beat)
        joined = await join_it()
        assert (joined.crawl.id, joined.is_new) == ("pages-1", False)
        assert said == [
            "pages-1 is not discarded, though SHOAL_FRESH is set: 1 of its workers are at work, and this process joins"
            " them; stop them first to start over"
        ]
        await frontier.beat(msgspec.structs.replace(beat, left=1.0))
        assert (await join_it()).is_new
