"""`shoal run` on a spider whose newest crawl is finished: nothing is fetched unless it is asked for."""

from __future__ import annotations

import json
import signal
from collections import Counter

import pytest
from command_line import SECONDS, Folder

from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import wait_for_line

PRODUCTS = 5
# The process that works, and with "all" the one above it, which people see.
DEADLY = """
    async def finished(self):
        import os, signal
        from pathlib import Path

        mark = Path("deadly")
        if mark.exists():
            dies = mark.read_text()
            mark.unlink()
            if dies == "all":
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
"""


def requests(site: SiteProcess) -> int:
    return len(site.hits())


def deadly(folder: Folder, site: SiteProcess, dies: str) -> None:
    """Write a spider whose first worker is killed after its last page."""
    spider = folder.path / folder.spider(site.url)
    spider.write_text(spider.read_text() + DEADLY)
    (folder.path / "deadly").write_text(dies)


def test_a_run_killed_after_the_end_fetches_nothing_when_it_is_run_again(folder: Folder, site: SiteProcess) -> None:
    deadly(folder, site, "all")
    killed = ("run", "books.py", "-o", "books.jsonl", "--json")
    folder.run(*killed, code=-signal.SIGKILL)
    assert not (folder.path / "books.jsonl").exists()
    before = requests(site)
    result = folder.run("run", "books.py", "-o", "books.jsonl")
    assert requests(site) == before
    assert "books-1 is finished since " in result.stderr
    assert "run books.py -o books.jsonl --again begins a new crawl" in result.stderr
    assert result.stdout.startswith("books-1 finished: ")
    assert len((folder.path / "books.jsonl").read_text().splitlines()) == PRODUCTS


@pytest.mark.full
def test_a_run_whose_worker_is_killed_after_the_end_ends_as_any_other(folder: Folder, site: SiteProcess) -> None:
    deadly(folder, site, "the worker")
    before = requests(site)
    result = folder.run("run", "books.py", "--again", "-o", "books.jsonl", "--json")
    asked = Counter(hit.path for hit in site.hits()[before:])
    assert (set(asked.values()), len(asked) - 1) == ({1}, json.loads(result.stdout)["pages"])  # and robots.txt
    assert "the worker ended with SIGKILL" in result.stderr
    assert "is finished since" not in result.stderr
    assert len((folder.path / "books.jsonl").read_text().splitlines()) == PRODUCTS


def test_the_summary_of_a_finished_crawl_is_the_same_later(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url)
    first = folder.json("run", "books.py")
    later = folder.json("run", "books.py")
    for name in ("seconds", "pages_per_second"):
        del first[name], later[name]
    assert later == first


def test_the_exit_code_of_a_crawl_that_failed_stays(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url, first='raise ValueError("no")')
    folder.run("run", "books.py", "--set", "stop_after_failures=0", "--set", "max_attempts=1", code=1)
    before = requests(site)
    folder.run("run", "books.py", code=1)
    assert requests(site) == before


def test_again_begins_a_new_crawl_beside_the_finished_one_and_resumes_an_unfinished_one(
    folder: Folder, site: SiteProcess
) -> None:
    folder.spider(site.url)
    folder.run("run", "books.py", "--again")
    before = Counter(hit.path for hit in site.hits())
    assert folder.json("run", "books.py", "--again")["crawl"] == "books-2"
    after = Counter(hit.path for hit in site.hits())
    assert after["/catalogue/page-1.html"] == before["/catalogue/page-1.html"] + 1
    added = folder.run("add", "books-2", f"{site.url}?more")
    assert "nobody works on books-2 now" in added.stderr
    summary = folder.json("run", "books.py", "--again")
    assert (summary["crawl"], summary["resumed"]) == ("books-2", True)


def test_what_has_changed_since_is_named(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url)
    folder.run("run", "books.py")
    spider = folder.path / "books.py"
    spider.write_text(spider.read_text().replace("page-1.html", "page-2.html"))
    said = folder.run("run", "books.py", "--set", "max_depth=7").stderr
    assert "its start has changed" in said
    assert "max_depth " in said
    assert "is now 7" in said


def test_a_cancelled_crawl_is_not_finished_and_a_new_one_begins(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url)
    folder.run("run", "books.py")
    folder.run("add", "books-1", f"{site.url}?more")
    folder.run("cancel", "books-1")
    result = folder.run("run", "books.py")
    assert "books-1 is cancelled: a new crawl begins" in result.stderr
    assert "resume books-1 lets the old one go on" in result.stderr
    assert result.stdout.startswith("books-2 finished: ")


@pytest.mark.full
def test_other_urls_of_the_same_site_are_another_crawl(folder: Folder, site: SiteProcess) -> None:
    flags = ("--allow-private", "--max-pages", "1", "--rate", "unlimited")
    first = folder.json("crawl", f"{site.url}?one", *flags)["crawl"]
    assert folder.json("crawl", f"{site.url}?one", *flags)["crawl"] == first
    assert folder.json("crawl", f"{site.url}?two", *flags)["crawl"] != first


@pytest.mark.parametrize(("key", "crawl"), [(b"n\n", "books-1"), (b"y\n", "books-2")])
def test_people_are_asked(folder: Folder, site: SiteProcess, key: bytes, crawl: str) -> None:
    folder.spider(site.url)
    folder.run("run", "books.py")
    shown = folder.on_terminal("run", "books.py", columns=200, keys=key)
    assert "Begin one now? [y/N]" in shown
    assert f"{crawl} finished: " in shown


def test_another_store_than_that_of_the_finished_crawl_is_refused(folder: Folder, site: SiteProcess) -> None:
    folder.spider(site.url)
    folder.run("run", "books.py")
    line = folder.refusal("run", "books.py", "--store", "other.db").partition("shoal: ")[2]
    assert line.startswith("books-1 is finished, and the items of books-1 lie in ")
    assert line.endswith("--again begins a new crawl")


@pytest.mark.full
def test_a_store_that_is_away_at_the_end_is_waited_for(folder: Folder, site: SiteProcess) -> None:
    """The store goes away after the last page was written, and comes back."""
    server = PostgresServer().start()
    try:
        server.new_database("results")
        spider = folder.path / folder.spider(site.url)
        waits = "\n    async def finished(self):\n        print('at the end', flush=True)\n        input()\n"
        spider.write_text(spider.read_text() + waits)
        store = ("--store", server.url("results"))
        with folder.start("run", "books.py", *store, "-o", "books.jsonl", stdin=-1) as run:
            assert run.stderr is not None
            assert run.stdin is not None
            wait_for_line(run.stderr, "at the end")
            server.kill()
            run.stdin.write("\n")
            run.stdin.flush()
            wait_for_line(run.stderr, "; waiting")
            server.start()
            _, err = run.communicate(timeout=SECONDS)
        assert run.returncode == 0, err
        assert len((folder.path / "books.jsonl").read_text().splitlines()) == PRODUCTS
    finally:
        server.stop()
        server.remove()
