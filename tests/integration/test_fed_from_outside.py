"""Spiders that are fed from outside: run --stay, workers that begin a crawl for what was pushed, folders and lists."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from command_line import SECONDS, Folder, Started

from shoal.frontier import open_frontier
from shoal.model import Crawl, Progress
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import wait_until

PRODUCTS = 5
SPIDER = """
from shoal import Spider

class Books(Spider):
    rate = "unlimited"
    settings = {"allow_private": True, "obey_robots": False}

    def parse(self, page):
        yield {"url": page.url}

    def book(self, page):
        yield {"url": page.url, "handler": "book", "meta": page.meta}
"""


class Outside(NamedTuple):
    """A spider without a start, the place of its crawls, and a way to push lines into an inbox."""

    folder: Folder
    frontier: str
    push: Callable[..., None]
    url: str

    @property
    def places(self) -> list[str]:
        return ["--frontier", self.frontier, "--store", "items.db"]

    def stored(self) -> set[str]:
        with closing(sqlite3.connect(self.folder.path / "items.db")) as database:
            return {url for (url,) in database.execute("SELECT url FROM item")}

    def has_stored(self, urls: set[str]) -> bool:
        # A worker that was killed as it made the file has made no tables.
        with suppress(sqlite3.OperationalError):
            return (self.folder.path / "items.db").exists() and self.stored() >= urls
        return False

    def crawls(self) -> list[tuple[Crawl, Progress]]:
        return asyncio.run(self._crawls())

    async def _crawls(self) -> list[tuple[Crawl, Progress]]:
        frontier = await open_frontier(
            self.frontier if "://" in self.frontier else str(self.folder.path / self.frontier)
        )
        try:
            return [(crawl, await frontier.progress(crawl.id)) for crawl in await frontier.crawls()]
        finally:
            await frontier.close()

    def wait_for(self, *, done: int, crawls: int = 1) -> None:
        def is_so() -> bool:
            found = self.crawls() if self.has_frontier() else []
            return len(found) == crawls and sum(progress.done for _, progress in found) == done

        wait_until(is_so, otherwise=f"{done} pages are not done")

    def has_frontier(self) -> bool:
        return "://" in self.frontier or (self.folder.path / self.frontier).exists()


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.full)])
def outside(request: pytest.FixtureRequest, folder: Folder, site: SiteProcess) -> Outside:
    (folder.path / "books.py").write_text(SPIDER)
    if request.param == "sqlite":
        return Outside(folder, "shoal.db", lambda name, *lines: put_file(folder.path, name, *lines), site.url)
    server: RedisServer = request.getfixturevalue("redis")

    def push(name: str, *lines: str) -> None:
        server.call("LPUSH", f"shoal:inbox:{name}", *lines)

    return Outside(folder, server.url, push, site.url)


def put_file(folder: Path, name: str, *lines: str) -> None:
    """Write a file elsewhere and move it into the inbox, as programs do."""
    inbox = folder / "shoal-inbox" / name
    inbox.mkdir(parents=True, exist_ok=True)
    part = folder / "part"
    part.write_text("\n".join(lines))
    part.rename(inbox / f"{time.time_ns()}.txt")


def ended(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
    """The return code and what was said of a process that is told to stop."""
    process.send_signal(number)
    _, err = process.communicate(timeout=SECONDS)
    return process.returncode, err


def stay(outside: Outside, *options: str) -> Started:
    return outside.folder.start("run", "books.py", "--stay", *outside.places, *options)


def test_a_run_that_stays_waits_for_what_comes_ends_in_good_order_and_resumes(outside: Outside) -> None:
    with stay(outside) as run:
        wait_until(lambda: outside.has_frontier() and bool(outside.crawls()), otherwise="no crawl began")
        outside.push("books", f"{outside.url}?1", json.dumps({"url": f"{outside.url}?2", "handler": "book"}))
        outside.wait_for(done=2)
        outside.push("books-1", f"{outside.url}?3")
        outside.wait_for(done=3)
        time.sleep(1.2)  # a worker asks again, and hears that there is nothing to do
        assert outside.crawls()[0][1].state == "running"
        code, said = ended(run)
    assert (code, outside.crawls()[0][1].state) == (0, "running"), said
    assert "books-1 stays until you stop it" in said
    with stay(outside) as run:
        outside.folder.run("add", "books", f"{outside.url}?4", "--frontier", outside.frontier)
        outside.wait_for(done=4)
        code, said = ended(run, signal.SIGINT)
    assert (code, "resuming books-1" in said) == (0, True), said
    # Without --stay it comes to its end, though it has no start.
    assert "books-1 finished" in outside.folder.run("run", "books.py", *outside.places).stdout
    assert outside.crawls()[0][1].is_finished
    assert len(outside.stored()) == 4


def test_workers_that_serve_the_spider_begin_one_crawl_and_keep_it_open(outside: Outside) -> None:
    workers = [outside.folder.start("worker", "books.py", *outside.places) for _ in range(2)]
    outside.push("books", f"{outside.url}?1")
    outside.wait_for(done=1)
    outside.push("books", f"{outside.url}?2")
    outside.wait_for(done=2)
    ends = [ended(worker) for worker in workers]
    assert [code for code, _ in ends] == [0, 0], ends
    assert sum("beginning books-1" in said for _, said in ends) == 1, ends
    ((crawl, progress),) = outside.crawls()
    assert (crawl.id, progress.state, progress.feeders_lost) == ("books-1", "running", 0)
    outside.folder.run("worker", "books.py", *outside.places, "--burst")
    assert outside.crawls()[0][1].is_finished


def test_what_was_pushed_is_in_the_inbox_or_in_the_frontier_whenever_its_taker_dies(outside: Outside) -> None:
    urls = {f"{outside.url}?{number}" for number in range(40)}
    outside.push("books", *sorted(urls))
    for seconds in (0.9, 1.3, 1.7):
        with outside.folder.start("worker", "books.py", *outside.places, start_new_session=True) as worker:
            time.sleep(seconds)
            os.killpg(worker.pid, signal.SIGKILL)
            worker.communicate()
    with outside.folder.start("worker", "books.py", *outside.places) as worker:
        # A taker that is killed may keep its entries to itself for thirty seconds.
        wait_until(lambda: outside.has_stored(urls), otherwise="entries are lost")
        ended(worker)
    ((_, progress),) = outside.crawls()
    assert (progress.known, progress.feeders_lost) == (len(urls), 0)


def test_status_names_inboxes_that_nobody_reads(outside: Outside) -> None:
    outside.push("books", f"{outside.url}?1")
    with outside.folder.start("worker", "books.py", *outside.places) as worker:
        outside.wait_for(done=1)
        ended(worker)
    outside.push("books", f"{outside.url}?2", f"{outside.url}?3")
    outside.push("boks", f"{outside.url}?4")
    outside.push("books-1", f"{outside.url}?5")
    said = outside.folder.run("status", "--frontier", outside.frontier).stderr
    place = "shoal-inbox/boks" if outside.frontier == "shoal.db" else "shoal:inbox:boks"
    assert f"1 entry in {place}: 'boks' is neither a crawl nor a spider of this frontier: did you mean 'books'?" in said
    # Its newest crawl is the one that takes both.
    assert "2 entries in the inbox of the spider books" in said
    assert "1 entry in the inbox of books-1, which nobody has taken: " in said
    one = outside.folder.run("status", "books", "--json", "--frontier", outside.frontier)
    assert ("boks" in one.stderr, "the spider books" in one.stderr) == (False, True)
    assert json.loads(one.stdout)["crawl"] == "books-1"
    # The line can be pasted.
    (line,) = [line for line in said.splitlines() if "the spider books" in line]
    assert "run books.py --stay" in line
    with stay(outside) as run:
        outside.wait_for(done=4)
        ended(run)
    assert "boks" in outside.folder.run("status", "--frontier", outside.frontier).stderr


def test_a_slip_in_a_name_is_seen_before_any_crawl_has_begun(outside: Outside) -> None:
    outside.push("boks", f"{outside.url}?1")
    place = "shoal-inbox/boks" if outside.frontier == "shoal.db" else "shoal:inbox:boks"
    seen = f"1 entry in {place}: 'boks' is neither a crawl nor a spider of this frontier: "
    for options in ([], ["boks"]):
        said = outside.folder.run("status", *options, "--frontier", outside.frontier, code=2).stderr
        assert f"{seen}No inbox is read here now: `shoal worker FILE` reads its spider's inbox" in said
    with outside.folder.start("worker", "books.py", *outside.places) as worker:

        def is_told() -> bool:
            said = outside.folder.run("status", "--frontier", outside.frontier, code=2).stderr
            return f"{seen}did you mean 'books'? Read here: books" in said

        wait_until(is_told, otherwise="the slip is not told")
        ended(worker)


def test_a_spider_without_a_start_is_refused_where_nothing_is_to_come(outside: Outside) -> None:
    refusal = outside.folder.refusal("run", "books.py", *outside.places)
    assert (
        "Books has no start: give it a `start` URL or a list of them, or --stay waits for URLs from outside" in refusal
    )


def test_a_folder_of_its_own_is_watched_where_the_frontier_is_a_file(outside: Outside) -> None:
    if outside.frontier != "shoal.db":
        refusal = outside.folder.refusal("run", "books.py", "--stay", "--inbox", "incoming", *outside.places)
        assert "--inbox incoming: a folder is read only if the frontier is a file" in refusal
        return
    refusal = outside.folder.refusal("run", "books.py", "--stay", "--inbox", "books.py/in", *outside.places)
    assert "the inbox books.py/in cannot be created: Not a directory: --inbox FOLDER names another" in refusal
    assert not outside.has_frontier()
    with stay(outside, "--inbox", "incoming") as run:
        wait_until(lambda: (outside.folder.path / "incoming").is_dir(), otherwise="the folder was not made")
        (outside.folder.path / "urls.txt").write_text(f"{outside.url}?1\nno url\n")
        (outside.folder.path / "urls.txt").rename(outside.folder.path / "incoming" / "urls.txt")
        outside.wait_for(done=1)
        wait_until(lambda: (outside.folder.path / "incoming/done/urls.txt").exists(), otherwise="it was not moved")
        ended(run)
    assert outside.crawls()[0][1].dead == 1
    # Seen from another folder as well, with the command that takes it.
    incoming, elsewhere = outside.folder.path / "incoming", outside.folder.path / "elsewhere"
    (incoming / "late.txt").write_text(f"{outside.url}?2\n")
    elsewhere.mkdir()
    said = Folder(elsewhere).run("status", "--frontier", str(outside.folder.path / "shoal.db")).stderr
    assert f"1 entry in the inbox of the spider books ({incoming})" in said
    assert f" --stay --inbox {incoming} " in said
    assert "1 other cannot be queued again, as inbox entries" in outside.folder.run("dead", "requeue", "books-1").stderr


def test_entries_for_a_spider_with_a_crawl_that_ended_begin_the_next_one(outside: Outside) -> None:
    with stay(outside) as run:
        outside.push("books", f"{outside.url}?1")
        outside.wait_for(done=1)
        ended(run)
    outside.folder.run("run", "books.py", *outside.places)
    with outside.folder.start("worker", "books.py", *outside.places) as worker:
        outside.push("books", f"{outside.url}?1")
        outside.wait_for(done=2, crawls=2)
        _, said = ended(worker)
    assert "beginning books-2" in said
    assert [(crawl.id, progress.state) for crawl, progress in outside.crawls()] == [
        ("books-2", "running"),
        ("books-1", "finished"),
    ]


@pytest.mark.parametrize("ended_by", ["cancel", "stop"])
def test_entries_for_a_spider_whose_crawl_was_given_up_begin_the_next_one_and_the_crawls_own_wait(
    outside: Outside, ended_by: str
) -> None:
    if ended_by == "stop":
        with stay(outside, "--max-items", "1") as run:
            outside.push("books", f"{outside.url}?1")
            out, _ = run.communicate(timeout=SECONDS)
        assert (run.returncode, "books.py --stay --set max_items=2" in out) == (0, True), out
    else:
        with stay(outside) as run:
            outside.push("books", f"{outside.url}?1")
            outside.wait_for(done=1)
            ended(run)
        outside.folder.run("cancel", "books-1", "--yes", "--frontier", outside.frontier)
    outside.push("books-1", f"{outside.url}?2")
    with outside.folder.start("worker", "books.py", *outside.places) as worker:
        outside.push("books", f"{outside.url}?3")
        outside.wait_for(done=2, crawls=2)
        ended(worker)
    (second, _), (first, progress) = outside.crawls()
    assert (first.id, progress.state, progress.known) == (
        "books-1",
        "stopped" if ended_by == "stop" else "cancelled",
        1,
    )
    assert outside.stored() == {f"{outside.url}?1", f"{outside.url}?3"}
    # What was pushed to the crawl itself waits until somebody takes it up again.
    said = outside.folder.run("status", "--frontier", outside.frontier).stderr
    assert "1 entry in the inbox of books-1" in said
    if ended_by == "stop":
        return  # its limit holds: resumed, it would be stopped again
    outside.folder.run("cancel", second.id, "--yes", "--frontier", outside.frontier)
    outside.folder.run("resume", "books-1", "--frontier", outside.frontier)
    with outside.folder.start("worker", "books.py", *outside.places) as worker:
        wait_until(lambda: outside.has_stored({f"{outside.url}?2"}), otherwise="what was pushed is not done")
        ended(worker)


def test_entries_for_a_paused_crawl_go_into_it_and_wait(outside: Outside) -> None:
    with stay(outside) as run:
        outside.push("books", f"{outside.url}?1")
        outside.wait_for(done=1)
        outside.folder.run("pause", "books", "--frontier", outside.frontier)
        outside.push("books", f"{outside.url}?2")
        outside.push("books-1", f"{outside.url}?3")
        wait_until(lambda: outside.crawls()[0][1].queued == 2, otherwise="they do not go into the crawl")
        outside.folder.run("resume", "books", "--frontier", outside.frontier)
        outside.wait_for(done=3)
        ended(run)
    assert [crawl.id for crawl, _ in outside.crawls()] == ["books-1"]
