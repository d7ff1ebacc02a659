"""Lines that messages show as commands: each is pasted into a shell in the same folder, and works."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from pathlib import Path

import msgspec
import pytest
from command_line import SECONDS, Folder

from shoal.cli.display.next_commands import program
from shoal.frontier import open_frontier
from shoal.model import Budgets, CrawlState, Done, ExitUse, Pool, Task
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 12
PLACES = ("--frontier", "my tasks.db", "--store", "my items.db")
BROKEN = "assert '000007-' not in page.url, 'book seven is broken'"


@pytest.fixture
def crawled(folder: Folder, site: SiteProcess) -> Folder:
    """A folder with a crawl that has a dead letter, in a frontier and a store that no command would find itself."""
    folder.spider(site.url, first=BROKEN)
    return folder


def paste(folder: Folder, text: str) -> str:
    """Run the line that follows the last ": " or two spaces before the program's name; gives what it prints."""
    line = text[text.index(program()) :].rstrip()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    result = subprocess.run(
        ["sh", "-c", line],
        cwd=folder.path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert result.returncode == 0, f"{line}: {result.stderr}"
    return result.stdout + result.stderr


def line_with(text: str, words: str) -> str:
    (found,) = [line for line in text.splitlines() if words in line]
    return found


def test_the_lines_of_the_summary_and_those_that_they_lead_to(crawled: Folder) -> None:
    out = crawled.run("run", "books.py", "--set", "max_attempts=1", *PLACES).stdout
    paste(crawled, line_with(out, "next  "))
    assert (crawled.path / "items.csv").read_text().count("\n") == PRODUCTS
    listed = paste(crawled, line_with(out, "dead  "))
    assert "books-1: 1 of 1 dead letter" in listed
    dead = re.search(r"http\S+", listed)
    assert dead is not None
    why = crawled.run("why", dead[0], *PLACES).stdout
    assert "1 dead letter queued again" in paste(crawled, line_with(why, "to queue it again: "))
    crawled.run("run", "books.py", "--set", "max_attempts=1", *PLACES)
    assert "1 dead letter queued again" in paste(crawled, line_with(listed, "to queue them again: "))
    assert not (crawled.path / "shoal.db").exists()


@pytest.mark.full
def test_dead_letters_that_were_chosen_are_the_ones_queued_again(crawled: Folder) -> None:
    crawled.run("run", "books.py", "--set", "max_attempts=1", *PLACES)
    listed = crawled.run("dead", "list", "--reason", "handler", "--since", "1 h", *PLACES[:2]).stderr
    assert "--since '1 h' --reason handler" in listed or "--reason handler --since '1 h'" in listed
    assert "1 dead letter queued again" in paste(crawled, line_with(listed, "to queue them again: "))


def test_a_cancelled_crawl_is_taken_up_again(folder: Folder, site: SiteProcess) -> None:
    name = folder.spider(site.url, rate="4/s")
    with folder.start("run", name) as process:
        folder.wait_for_pages(1)
        folder.run("cancel", "--yes")
        out, _ = process.communicate(timeout=SECONDS)
    (line,) = [line for line in out.splitlines() if line.startswith("cancelled ")]
    assert "books-1 is running" in paste(folder, line)


@pytest.mark.full
def test_a_page_that_is_in_no_archive_is_asked_for_in_the_crawl(crawled: Folder, site: SiteProcess) -> None:
    crawled.run("run", "books.py", "--archive", "pages", "--max-pages", "2", *PLACES)
    missing = f"{site.url}never?a=1&b=2"
    refusal = crawled.refusal("page", missing, "--archive", "pages", *PLACES)
    (line,) = re.findall(r"`(.*)`", refusal)
    assert missing in paste(crawled, line)


@pytest.mark.full
def test_a_spent_budget_is_raised_by_the_command_that_status_and_resume_name(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url)
    folder.run("run", "books.py", "--max-pages", "2", "--deny", "it's,", *PLACES)
    asyncio.run(spend(folder.path / "my tasks.db"))
    status = line_with(folder.run("status", "books-1", *PLACES).stdout, "next: ")
    assert "--set budget=2" in status
    refusal = folder.refusal("resume", "books-1", *PLACES[:2])
    assert refusal.endswith(status.removeprefix("next: ").removesuffix(" --store 'my items.db'"))
    told = paste(folder, status)
    assert "resuming books-1" in told
    assert "its settings changed: budget 1.0 is now 2.0\n" in told


async def spend(path: Path) -> None:
    """Let the crawl have a pool, and a budget that one request has used up."""
    frontier = await open_frontier(str(path))
    try:
        (crawl,) = await frontier.crawls()
        pool = Pool(name="ring", exits=("x",), interval=0.0, cost=1.0)
        settings = {**crawl.settings, "settings": {**crawl.settings["settings"], "budget": 1.0}}
        costly = msgspec.structs.replace(crawl, pools=(pool,), budgets=Budgets(cost=1.0), settings=settings)
        await frontier.open_crawl(costly)
        await frontier.put(crawl.id, [Task(url="http://x.test/", key=1, lane="x.test via ring", pool="ring")])
        leases: list[object] = []
        while not leases:
            batch = await frontier.lease([crawl.id], 1, worker="w", seconds=60.0, horizon=0.0)
            await frontier.settle([Done(lease=lease, exit=ExitUse()) for lease in batch.leases])
            leases += batch.leases
        await frontier.put(crawl.id, [Task(url="http://x.test/2", key=2, lane="x.test via ring", pool="ring")])
        await frontier.lease([crawl.id], 1, worker="w", seconds=60.0, horizon=0.0)
        assert (await frontier.progress(crawl.id)).state is CrawlState.PAUSED
    finally:
        await frontier.close()


@pytest.mark.full
def test_a_handler_that_failed_is_mended_and_the_line_goes_on(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url, first="raise KeyError('price')")
    settings = ("--set", "max_attempts=1", "--set", "stop_after_failures=5", "--deny", "it's,")
    out = folder.run("run", "books.py", *settings, *PLACES, code=1).stdout
    folder.spider(site.url)
    told = paste(folder, line_with(out, "then: "))
    assert "books-1 finished" in told
    assert "its settings changed" not in told


@pytest.mark.full
def test_a_worker_without_a_crawl_names_the_command_that_begins_one(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url)
    (line,) = re.findall(r"`(.*)`", folder.refusal("worker", "books.py", "--burst", *PLACES))
    assert "books-1 finished" in paste(folder, line)


@pytest.mark.full
def test_what_a_redis_server_lacks_is_said_once_for_all_workers_of_a_crawl(folder: Folder, site: SiteProcess) -> None:
    server = RedisServer(folder.path / "redis").start()
    try:
        server.call("CONFIG", "SET", "appendonly", "no")
        places = ("--frontier", server.url)
        told = folder.run("run", folder.spider(site.url), "--workers", "3", *places).stderr
        (line,) = [line for line in told.splitlines() if "append-only" in line]
        for arguments in (
            ["status"],
            ["pace", "a.test", "1/s"],
            ["worker", "books.py", "--crawl", "books-1", "--burst"],
        ):
            assert "append-only" not in folder.run(*arguments, *places).stderr
        mend = line.partition("fix it with: ")[2]
        assert subprocess.run(["sh", "-c", mend], capture_output=True, check=True).stdout == b"OK\n"
        assert server.call("CONFIG", "GET", "appendonly")[1] == b"yes"
    finally:
        server.kill()
