"""URLs pushed while a crawl ends: done, or said with the command that does them."""

from __future__ import annotations

import re
import shlex
import sqlite3
import subprocess
from contextlib import closing

import pytest
from command_line import SECONDS, Folder, Started

from shoal.frontier.redis.shards import prefix_of
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import wait_until

PRODUCTS = 1
CRAWL = "books-1"
INBOX = f"shoal:inbox:{CRAWL}"
PUSHES = 30
# An item that is larger than a pipe: who writes it to one waits until it is read.
SPIDER = """
from shoal import Spider

class Books(Spider):
    start = ["{url}?start"]
    rate = "unlimited"
    settings = {{"allow_private": True, "obey_robots": False}}

    def parse(self, page):
        yield {{"url": page.url, "text": "long " * 50_000 if page.url.endswith("start") else ""}}
"""


@pytest.fixture
def places(folder: Folder, site: SiteProcess, redis: RedisServer) -> list[str]:
    (folder.path / "books.py").write_text(SPIDER.format(url=site.url))
    return ["--frontier", redis.url, "--store", "items.db"]


def stored(folder: Folder) -> set[str]:
    with closing(sqlite3.connect(folder.path / "items.db")) as database:
        return {url for (url,) in database.execute("SELECT url FROM item")}


def end_with_pushes(folder: Folder, redis: RedisServer, places: list[str], urls: list[str]) -> str:
    """Run the crawl, push these URLs after its end and before the end of the command; gives what it says."""
    with folder.start("run", "books.py", *places, "-o", "-") as run:
        assert run.stdout is not None
        assert run.stdout.read(1) == "{"
        redis.call("LPUSH", INBOX, *urls)
        _, err = run.communicate(timeout=SECONDS)
    assert run.returncode == 0
    return err


def test_entries_that_come_after_the_last_page_are_said_with_the_command_that_takes_them(
    folder: Folder, site: SiteProcess, redis: RedisServer, places: list[str]
) -> None:
    late = [f"{site.url}?late={number}" for number in range(3)]
    said = end_with_pushes(folder, redis, places, late)
    found = re.search(r"3 entries in the inbox of books-1, which nobody has taken: (.*) takes them", said)
    assert found is not None, said
    words = shlex.split(found[1].partition("shoal ")[2])
    folder.run(*words)
    assert stored(folder) >= set(late)
    assert redis.call("EXISTS", INBOX) == 0


def test_the_next_run_goes_on_with_a_finished_crawl_that_has_entries_in_its_inbox(
    folder: Folder, site: SiteProcess, redis: RedisServer, places: list[str]
) -> None:
    late = [f"{site.url}?late={number}" for number in range(3)]
    end_with_pushes(folder, redis, places, late)
    result = folder.run("run", "books.py", *places)
    assert "books-1 was finished, but its inbox has 3 entries: it goes on" in result.stderr
    assert result.stdout.startswith("books-1 finished: 3 pages")
    assert stored(folder) >= set(late)


def test_a_new_crawl_says_that_the_inbox_of_an_earlier_one_has_entries(
    folder: Folder, site: SiteProcess, redis: RedisServer, places: list[str]
) -> None:
    end_with_pushes(folder, redis, places, [f"{site.url}?late"])
    said = folder.run("run", "books.py", "--again", *places).stderr
    assert "beginning books-2" in said
    assert "1 entry in the inbox of books-1, which nobody has taken: " in said


@pytest.mark.full
def test_whatever_is_pushed_while_runs_and_workers_end_is_done_or_still_there(
    folder: Folder, site: SiteProcess, redis: RedisServer, places: list[str]
) -> None:
    pushed: list[str] = []
    commands = [("run", "books.py"), ("worker", "books.py", "--crawl", CRAWL, "--burst"), ("run", "books.py")]
    for command in commands:
        with folder.start(*command, *places, stdout=subprocess.DEVNULL) as process:
            push_at_each_end(process, redis, pushed, site)
            _, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, err
        left = {entry.decode() for entry in redis.call("LRANGE", INBOX, 0, -1)}
        assert stored(folder) | left >= set(pushed), err
        # So that the next command has something to do.
        pushed.append(f"{site.url}?between={len(pushed)}")
        redis.call("LPUSH", INBOX, pushed[-1])
    folder.run("run", "books.py", *places)
    assert stored(folder) >= set(pushed)


def push_at_each_end(process: Started, redis: RedisServer, pushed: list[str], site: SiteProcess) -> None:
    """Push a URL whenever the crawl is finished, some times or until the process has ended."""
    key = f"{prefix_of(CRAWL)}crawl"
    for _ in range(PUSHES):
        wait_until(
            lambda: process.poll() is not None or redis.call("HGET", key, "state") == b"finished",
            otherwise="the crawl was not finished",
        )
        if process.poll() is not None:
            return
        pushed.append(f"{site.url}?pushed={len(pushed)}")
        redis.call("LPUSH", INBOX, pushed[-1])
