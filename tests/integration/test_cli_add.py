"""`shoal add` with everything that a request has, from files and standard input: refused before anything is put."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest
from command_line import Folder

from shoal.frontier import open_frontier
from shoal.model import Task
from shoal.settings.table import Settings
from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import wait_until
from shoal.urls.canonical import UrlRules

PRODUCTS = 5
SPIDER = """
from shoal import Spider

class Books(Spider):
    start = ["{url}?start"]
    rate = "unlimited"
    settings = {{"allow_private": True, "obey_robots": False, "max_pending": {most}}}

    def parse(self, page):
        return None

    def book(self, page):
        yield {{"url": page.url, "meta": page.meta}}
"""
PROXIES = """
[proxies.slow]
urls = ["http://127.0.0.1:9"]
"""


@pytest.fixture
def books(folder: Folder, site: SiteProcess) -> Folder:
    """A folder with a finished crawl of one page."""
    return begun(folder, site)


def begun(folder: Folder, site: SiteProcess, *, most: int = 1000, frontier: str = "shoal.db") -> Folder:
    (folder.path / "books.py").write_text(SPIDER.format(url=site.url, most=most))
    (folder.path / "shoal.toml").write_text(PROXIES)
    folder.run("run", "books.py", "--frontier", frontier)
    return folder


def task_at(folder: Folder, url: str) -> Task | None:
    async def read() -> Task | None:
        frontier = await open_frontier(str(folder.path / "shoal.db"))
        try:
            return (await frontier.look_up("books-1", UrlRules(Settings(), start_hosts=[]).key_of(url))).task
        finally:
            await frontier.close()

    return asyncio.run(read())


def waiting(folder: Folder) -> int:
    return int(folder.json("status", "books-1")["left"])


def test_adds_with_everything_that_a_request_has(books: Folder, site: SiteProcess) -> None:
    url = f"{site.url}?1"
    flags = ["--handler", "book", "--priority", "7", "--depth", "2", "--pool", "slow", "--max-attempts", "9"]
    meta = ["--meta", "from=sales", "--meta", '{"n": 1, "from": "json"}', "--delay", "10m"]
    assert books.json("add", "books-1", url, *flags, *meta)["new"] == 1
    task = task_at(books, url)
    assert task is not None
    assert (task.handler, task.priority, task.depth, task.pool, task.max_attempts) == ("book", 7, 2, "slow", 9)
    assert (task.meta, task.delay) == ({"from": "json", "n": 1}, 600.0)
    progress = books.json("status", "books-1")["progress"]
    assert (progress["delayed"], progress["queued"], 590 < progress["due_in"] <= 600) == (1, 0, True)


def test_a_crawl_is_not_finished_before_its_delayed_page_is_fetched(books: Folder, site: SiteProcess) -> None:
    books.run("add", "books-1", f"{site.url}?late", "--delay", "2s", "--handler", "book")
    books.run("run", "books.py")
    assert [item["url"] for item in items(books)] == [f"{site.url}?late"]


def items(folder: Folder) -> list[dict[str, object]]:
    lines = folder.run("export", "books-1", "-o", "-").stdout
    return [json.loads(line) for line in lines.splitlines()]


def test_lines_of_files_and_standard_input_may_be_objects(books: Folder, site: SiteProcess) -> None:
    lines = ["# urls", f"{site.url}?1", "", json.dumps({"url": f"{site.url}?2", "meta": {"own": 1}, "delay": "5m"})]
    (books.path / "urls.txt").write_text("\n".join(lines))
    assert books.json("add", "books-1", "-f", "urls.txt", "--handler", "book", "--meta", "a=b")["new"] == 2
    first, second = task_at(books, f"{site.url}?1"), task_at(books, f"{site.url}?2")
    assert first is not None
    assert second is not None
    assert (first.handler, first.meta, first.delay) == ("book", {"a": "b"}, 0.0)
    assert (second.handler, second.meta, second.delay) == ("book", {"own": 1}, 300.0)
    given = books.json("add", "books-1", "-", stdin="\n".join([*lines, f"{site.url}?3"]))
    assert (given["new"], given["duplicates"]) == (1, 2)


SLIPS = (
    (["--handler", "bok"], "the spider of books-1 has no handler 'bok': did you mean 'book'?"),
    (["--pool", "fast"], "there is no pool 'fast', only direct, slow"),
    (["--kind", "Browser"], "--kind 'Browser' is not a kind"),
    (["--meta", "sales"], "--meta sales: write it as --meta NAME=TEXT, or as a JSON object"),
    (["--meta", "{broken"], "--meta {broken is not a JSON object"),
    (["--delay", "soon"], "--delay 'soon': duration 'soon' is not understood"),
    (["--delay", "-5"], "--delay '-5': a delay is between 0 and 3650 days, not -5"),
    (["--priority", "99999999999"], "--priority 99999999999 is not between"),
    (["-f", "none.txt"], "--file none.txt cannot be read: No such file"),
    (["-f", "bad.txt"], "line 2 of bad.txt is no request: Object contains unknown field `prority`"),
    (["-f", "handlers.txt"], "line 1 of handlers.txt is no request: the spider of books-1 has no handler 'bok'"),
    (["-f", "pools.txt"], "line 1 of pools.txt is no request: there is no pool 'fast'"),
    (["-f", "."], "--file . is not a regular file"),
    (["-f", "urls.gz"], "--file urls.gz cannot be read: it is compressed by gzip"),
)


def test_a_slip_is_refused_before_anything_is_put(books: Folder, site: SiteProcess) -> None:
    url = f"{site.url}?1"
    (books.path / "bad.txt").write_text(f'{url}\n{{"url": "{url}", "prority": 1}}\n')
    (books.path / "handlers.txt").write_text(json.dumps({"url": url, "handler": "bok"}))
    (books.path / "pools.txt").write_text(json.dumps({"url": url, "pool": "fast"}))
    (books.path / "urls.gz").write_bytes(b"\x1f\x8b\x08\x00")
    for flags, refusal in SLIPS:
        assert refusal in books.refusal("add", "books-1", url, *flags)
    assert waiting(books) == 0


def test_a_bad_line_of_standard_input_ends_it_and_says_what_is_added(books: Folder, site: SiteProcess) -> None:
    lines = f'{site.url}?1\n{{"url": 3}}\n{site.url}?2\n'
    said = books.run("add", "books-1", "-", stdin=lines, code=2).stderr
    assert "line 2 of standard input is no request: Expected `str`, got `int`" in said
    assert "of those before it, books-1: 1 new, 0 known already: correct it and send all again" in said
    assert waiting(books) == 1


def test_a_list_of_which_no_line_is_a_url_is_no_success(books: Folder) -> None:
    said = books.run("add", "books-1", "-", stdin="name;price\nlamp;3\n", code=1)
    assert said.stderr == "nothing was added to books-1: every URL was kept out\n"
    assert said.stdout.splitlines()[-1].split()[:2] == ["2", "invalid_url"]
    assert said.stdout.endswith("'name;price'\n")


def test_the_rest_is_held_back_while_many_wait(folder: Folder, site: SiteProcess) -> None:
    begun(folder, site, most=100)
    lines = "\n".join(f"{site.url}?{number}" for number in range(1100))
    with folder.start("add", "books-1", "-", stdin=-1) as adding:
        assert adding.stdin is not None
        adding.stdin.write(lines)
        adding.stdin.close()
        adding.stdin = None
        wait_until(lambda: waiting(folder) == 500, otherwise="the first part was not added")
        assert adding.poll() is None
        folder.run("run", "books.py")
        wait_until(lambda: waiting(folder) == 500 or adding.poll() is not None, otherwise="nothing more was added")
        folder.run("run", "books.py")
        out, err = adding.communicate(timeout=60)
    assert "100 tasks wait in books-1 (max_pending): waiting before adding the rest" in err
    assert out == "books-1: 1,100 new, 0 known already\n"


def test_lines_are_added_as_they_come(books: Folder, site: SiteProcess) -> None:
    with books.start("add", "books-1", "-", stdin=-1) as adding:
        assert adding.stdin is not None
        for number in (1, 2):
            adding.stdin.write(f"{site.url}?{number}\n")
            adding.stdin.flush()
            wait_until(lambda number=number: waiting(books) == number, otherwise="a line is held back")
        adding.send_signal(signal.SIGINT)
        # Its input ends after it: lines that come to their end are no interruption.
        wait_until(lambda: adding.poll() is not None, otherwise="Ctrl-C does not end it")
        _, err = adding.communicate(timeout=60)
    assert adding.returncode == 130
    assert "interrupted; so far books-1: 2 new, 0 known already: the same command adds the rest" in err


@pytest.mark.parametrize("crawl_is", ["paused", "cancelled"])
def test_what_keeps_it_from_being_fetched_is_said(books: Folder, site: SiteProcess, crawl_is: str) -> None:
    books.run("add", "books-1", f"{site.url}?1")
    books.run(crawl_is.removesuffix("led").removesuffix("d"), "books-1")
    said = books.run("add", "books-1", f"{site.url}?2").stderr
    assert f"books-1 is {crawl_is}: " in said
    assert "resume books-1 lets it go on" in said
    books.run("resume", "books-1")
    assert waiting(books) == 2


@pytest.mark.parametrize("is_redis", [False, pytest.param(True, marks=pytest.mark.full)], ids=["sqlite", "redis"])
def test_a_file_that_is_added_again_after_each_kill_is_added_once(
    folder: Folder, site: SiteProcess, tmp_path: Path, is_redis: bool, request: pytest.FixtureRequest
) -> None:
    place = request.getfixturevalue("redis").url if is_redis else "shoal.db"
    begun(folder, site, most=100_000, frontier=place)
    total = 6000
    (folder.path / "urls.txt").write_text("\n".join(f"{site.url}?{number}" for number in range(total)))
    known = kills = 0
    while known < total:
        with folder.start("add", "books-1", "-f", "urls.txt", "--frontier", place) as adding:
            # Killed somewhere within the next puts.
            wanted = known + 700
            wait_until(
                lambda wanted=wanted: adding.poll() is not None or left(folder, place) >= wanted,
                otherwise="nothing is added",
                pause=0.001,
            )
            adding.kill()
            adding.communicate()
        kills += adding.returncode == -signal.SIGKILL
        known = left(folder, place)
    assert kills
    again = folder.json("add", "books-1", "-f", "urls.txt", "--frontier", place)
    assert (again["new"], again["duplicates"], left(folder, place)) == (0, total, total)


def left(folder: Folder, place: str) -> int:
    """The tasks that wait, read without starting a command: kills come soon after."""

    async def read() -> int:
        frontier = await open_frontier(place if "://" in place else str(folder.path / place))
        try:
            return (await frontier.progress("books-1")).left
        finally:
            await frontier.close()

    return asyncio.run(read())


def test_a_crawl_that_does_not_know_its_handlers_says_so(books: Folder, site: SiteProcess, tmp_path: Path) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "shoal.db") as database:
        ((settings,),) = database.execute("SELECT settings FROM crawl_about").fetchall()
        record = json.loads(settings)
        del record["handlers"]
        database.execute("UPDATE crawl_about SET settings = ?", (json.dumps(record).encode(),))
    said = books.run("add", "books-1", f"{site.url}?1", "--handler", "bok").stderr
    assert "books-1 does not say which handlers it has: 'bok' is not checked" in said
    assert waiting(books) == 1
