"""Crawls that end before their work is done: by a limit, by a deadline, by their spider; and how they go on."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from command_line import Folder

from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 40
LIMITED = ("--concurrency", "2", "--set", "flush_pages=2", "--max-items", "6")


@pytest.fixture
def spider(folder: Folder, site: SiteProcess) -> str:
    return folder.spider(site.url, rate="100/s")


def summary(folder: Folder, *arguments: str, code: int = 0) -> dict[str, Any]:
    return folder.json("run", *arguments, code=code)


def test_a_crawl_that_reaches_a_limit_is_stopped_and_says_so_at_once_when_it_is_run_again(
    folder: Folder, spider: str
) -> None:
    first = summary(folder, spider, *LIMITED)
    assert (first["state"], first["reason"], first["interrupted"]) == ("stopped", "max_items 6 reached", False)
    # No further than what was in flight, or waited for its write.
    assert 6 <= first["items"] <= 14
    assert first["left"] > 0
    # Beyond what it has by now, else it would be stopped again.
    enough = f" --set max_items={2 * first['items']}"
    assert first["raise_to"] == {"max_items": 2 * first["items"]}
    again = folder.run("run", spider, "--max-items", "5")
    assert "books-1 is stopped: max_items 5 reached, nothing is fetched: " in again.stderr
    assert f"{enough} " in again.stderr
    assert "--again begins a new one" in again.stderr
    assert again.stdout.startswith("books-1 stopped: ")
    assert "stopped  max_items 5 reached" in again.stdout
    assert again.stdout.endswith(f"{enough}\n")
    status = folder.json("status", "books-1")
    assert (status["state"], status["progress"]["done"]) == ("stopped", first["done"])
    assert status["limits"] == [{"reason": "max_items 6 reached", "most": 6}]


def test_a_stopped_crawl_is_resumed_by_a_raised_limit_alone(folder: Folder, spider: str) -> None:
    stopped = summary(folder, spider, *LIMITED)
    done = stopped["done"]
    refused = folder.run("resume", "books-1", code=2)
    assert "shoal: books-1: max_items 6 reached: " in refused.stderr
    assert " run books.py --set rate=100/s " in refused.stderr
    assert f" --set max_items={2 * stopped['items']} " in refused.stderr
    assert folder.run("pause", "books-1", code=2).stderr == "shoal: books-1 is stopped: there is nothing to pause\n"
    whole = summary(folder, spider)
    assert (whole["crawl"], whole["state"], whole["resumed"], whole["left"]) == ("books-1", "finished", True, 0)
    assert whole["pages"] + done == whole["done"]


def test_another_run_that_begins_anew_leaves_the_stopped_crawl(folder: Folder, spider: str) -> None:
    summary(folder, spider, *LIMITED)
    anew = folder.run("run", spider, "--again", "--json")
    assert "books-1 is stopped: a new crawl begins; " in anew.stderr
    states = {one["crawl"]: one["state"] for one in folder.json("status")}
    assert states == {"books-1": "stopped", "books-2": "finished"}


def test_a_spider_stops_its_crawl(folder: Folder, site: SiteProcess) -> None:
    first = "from shoal import StopCrawl\n        yield Item(key='before', n=1)\n        raise StopCrawl('seen enough')"
    spider = folder.spider(site.url, first=first)
    stopped = summary(folder, spider, "--workers", "2", "-o", "items.jsonl", "--max-items", "1000")
    assert (stopped["state"], stopped["reason"], stopped["dead"]) == ("stopped", "spider: seen enough", 0)
    assert stopped["items"] == 1
    assert "before" in (folder.path / "items.jsonl").read_text()
    resumed = folder.run("resume", "books-1")
    assert resumed.stdout.startswith("books-1 is running: ")
    assert "stops at:  max_items 1000 (" in folder.run("status", "books-1").stdout


def test_a_start_stops_its_crawl_and_keeps_what_it_gave(folder: Folder, site: SiteProcess) -> None:
    spider = folder.spider(site.url)
    with (folder.path / spider).open("a") as file:
        file.write("    async def start(self):\n        from shoal import StopCrawl\n")
        file.write(f"        yield '{site.url}?1'\n        raise StopCrawl(42)\n")
    stopped = folder.run("run", spider, "--json")
    found = json.loads(stopped.stdout)
    assert (found["state"], found["reason"], found["done"] + found["left"]) == ("stopped", "spider: 42", 1)
    assert stopped.stderr == "beginning books-1 in shoal.db\n"


def test_a_crawl_is_stopped_at_its_deadline_and_the_next_run_has_the_next_one(
    folder: Folder, site: SiteProcess
) -> None:
    spider = folder.spider(site.url, rate="5/s")
    at = f"{datetime.now() + timedelta(seconds=3):%H:%M:%S}"
    stopped = summary(folder, spider, "--deadline", at)
    assert (stopped["state"], stopped["reason"]) == ("stopped", f"deadline {at} passed")
    assert stopped["left"] > 0
    # Of this time of day the next one is tomorrow.
    resumed = summary(folder, spider, "--deadline", at, "--rate", "unlimited")
    assert (resumed["state"], resumed["resumed"]) == ("finished", True)


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--deadline", "6am", "deadline '6am' is not understood: write it as 06:00"),
        ("--deadline", "2026-01-02 06:00", "deadline 2026-01-02 06:00 has passed, no crawl can begin with it"),
        ("--max-items", "-1", "setting 'max_items' (command line)"),
        ("--max-seconds", "1 hour", "setting 'max_seconds' (command line): duration '1 hour' is not understood"),
        ("--max-bytes", "10kk", "setting 'max_bytes' (command line): size '10kk' is not understood"),
    ],
)
def test_a_limit_that_is_none_is_refused_where_it_is_given(
    folder: Folder, spider: str, flag: str, value: str, said: str
) -> None:
    assert said in folder.run("run", spider, flag, value, code=2).stderr
