"""Two crawls in one worker process: which of them goes first, and which one after a change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Folder

from shoal import Request
from shoal.crawl.beginning import begin
from shoal.crawl.opening import Places
from shoal.crawl.sources import feed, requests_of
from shoal.frontier import open_frontier
from shoal.insight.snapshots import SnapshotReader
from shoal.run.intakes import intake_of, settings_of
from shoal.run.steering import set_priority
from shoal.spider.loading import load_spider
from shoal.testing.sites.site_process import site_process
from shoal.testing.waiting import eventually

PAGES = 400
SPIDERS = """
from shoal import Item, Spider

class Once(Spider):
    settings = {{"allow_private": True, "obey_robots": False, "rate": "unlimited", "per_host": 99, "concurrency": 10}}

    def parse(self, page):
        yield Item(key=page.url)

class News(Once):
    name, priority, start = "news", 5, ["{urls[0]}"]

class Old(Once):
    name, start = "old", ["{urls[1]}"]
"""


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[list[str]]:
    """Two hosts, so slow that slots are what is scarce."""
    slow = ("--graph", "1", "--latency", "0.05")
    with (
        site_process(*slow, log=tmp_path / "a.jsonl") as first,
        site_process(*slow, log=tmp_path / "b.jsonl") as second,
    ):
        yield [first.url, second.url]


async def begin_both(folder: Folder, urls: list[str]) -> None:
    """Two crawls with work for a while, each on a host of its own, and no worker yet."""
    frontier = await open_frontier(str(folder.path / "shoal.db"))
    places = Places(frontier=str(folder.path / "shoal.db"), store=str(folder.path / "shoal.db"))
    reference = str(folder.path / "two.py")
    for name, url in zip(("News", "Old"), urls, strict=True):
        kind = load_spider(f"{reference}:{name}")
        spider = kind()
        spider.start = [Request(f"{url}?n={number}") for number in range(PAGES)]  # type: ignore[misc] -- its own
        settings = settings_of(kind, {}).values
        crawl, _ = await begin(frontier, spider, settings=settings, reference=reference, places=places)
        await feed(frontier, crawl.id, requests_of(spider), intake=intake_of(crawl), max_pending=10**6, say=print)
        await frontier.set_feeding(crawl.id, "feeder", seconds=0)
    await frontier.close()


async def put_behind(folder: Folder, name: str, other: str) -> None:
    """What `shoal priority NAME -1` does, without the time that a command takes to start. Then its pages are few, and
    `shoal status` says why."""
    frontier = await open_frontier(str(folder.path / "shoal.db"))
    crawl = next(one for one in await frontier.crawls() if one.id == name)
    assert await set_priority(crawl, -1, frontier=frontier) == 5
    looker, share = (
        SnapshotReader(crawl, frontier=frontier),
        f"slots: its workers share them with {other}; `shoal priority`",
    )

    async def is_said() -> bool:
        return (await looker.look()).bound.startswith(share)

    await eventually(is_said)
    await frontier.close()


def done(folder: Folder) -> dict[str, int]:
    return {one["crawl"]: one["progress"]["done"] for one in folder.json("status")}


def test_the_higher_crawl_has_nine_of_ten_slots_until_people_change_that(folder: Folder, urls: list[str]) -> None:
    (folder.path / "two.py").write_text(SPIDERS.format(urls=urls))
    asyncio.run(begin_both(folder, urls))
    said = folder.run("worker", "two.py", "--max-pages", "200").stderr
    assert "retired after 200 pages" in said
    first = done(folder)
    assert sum(first.values()) == 200
    assert 10 <= first["old-1"] <= 50
    assert folder.json("status", "news-1")["priority"] == 5
    said = folder.run("priority", "old-1", "9").stdout
    assert said == "old-1 has priority 9 from the next lease on; it had 0\n"
    folder.run("worker", "two.py", "--max-pages", "200")
    second = done(folder)
    assert sum(second.values()) == 400
    assert 10 <= second["news-1"] - first["news-1"] <= 50


def test_a_running_worker_heeds_a_changed_priority(folder: Folder, urls: list[str]) -> None:
    (folder.path / "two.py").write_text(SPIDERS.format(urls=urls))
    asyncio.run(begin_both(folder, urls))
    with folder.start("worker", "two.py", "--max-pages", "600") as worker:
        folder.wait_for_pages(10, crawl="news-1")
        asyncio.run(put_behind(folder, "news-1", "old-1"))
        assert worker.wait(60) == 0
    # With its first priority the crawl would have been at its end before the other one had its turn.
    assert done(folder)["old-1"] > done(folder)["news-1"]


def test_a_priority_below_zero_and_a_run_with_another_one(folder: Folder, urls: list[str]) -> None:
    (folder.path / "two.py").write_text(SPIDERS.format(urls=urls))
    asyncio.run(begin_both(folder, urls))
    changed = folder.json("priority", "old-1", "-3")
    assert changed == {"crawl": "old-1", "priority": -3, "before": 0}
    assert "is not in the range" in folder.refusal("priority", "old-1", "2000")
    assert "did you mean old-1?" in folder.refusal("priority", "odl-1", "2")
    # What people have changed stands, unless a run asks for another priority than the one before.
    summary = json.loads(folder.run("run", "two.py:Old", "--json").stdout)
    assert summary["done"] == PAGES + 1
    assert folder.json("status", "old-1")["priority"] == -3
    folder.run("run", "two.py:News", "--priority", "7")
    assert folder.json("status", "news-1")["priority"] == 7
    assert "priority:  7" in folder.run("status", "news-1").stdout
    names, *rows = (line.split()[:3] for line in folder.run("status").stdout.splitlines())
    assert (names[2], [row[2] for row in rows]) == ("priority", ["-3", "7"])
