"""A crawl belongs to a spider's file, and to those who work on it: nobody takes it over or discards it by a slip."""

from __future__ import annotations

import json
import os
import pty
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import Folder, Started, interrupt

from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 6


def rename(folder: Folder, site: SiteProcess, name: str) -> str:
    """A second file with a spider of the same class name."""
    former = (folder.path / folder.spider(site.url)).read_text(encoding="utf-8")
    (folder.path / name).write_text(former, encoding="utf-8")
    return name


def add_page(folder: Folder, site: SiteProcess, crawl: str = "books-1") -> None:
    assert folder.json("add", crawl, f"{site.url}catalogue/page-1.html?again=1")["new"] == 1


@contextmanager
def running(folder: Folder, site: SiteProcess, *options: str) -> Iterator[Started]:
    """A crawl that is worked on right now."""
    with folder.start("run", folder.spider(site.url, rate="1/s"), *options) as process:
        folder.wait_for_pages(1)
        yield process
        interrupt(process)
        process.communicate(timeout=60)


def test_another_file_with_the_same_class_name_does_not_resume_the_crawl(folder: Folder, site: SiteProcess) -> None:
    second = rename(folder, site, "second.py")
    folder.run("run", "books.py")
    add_page(folder, site)
    refusal = folder.refusal("run", second)
    assert f"books-1 belongs to {folder.path}/books.py; name your spider" in refusal
    assert "or --fresh" in refusal
    assert folder.json("status", "books-1")["left"] == 1
    assert folder.json("run", "books.py")["resumed"]


def test_fresh_leaves_the_crawl_of_another_file_and_says_that_items_share_a_name(
    folder: Folder, site: SiteProcess
) -> None:
    second = rename(folder, site, "second.py")
    folder.run("run", "books.py")
    add_page(folder, site)
    fresh = folder.run("run", second, "--fresh", "--json")
    assert json.loads(fresh.stdout)["crawl"] == "books-2"
    assert f"books-1 belongs to {folder.path}/books.py: in shoal.db its items and those of this crawl" in fresh.stderr
    assert "share the name 'books'" in fresh.stderr
    assert {one["crawl"]: one["left"] for one in folder.json("status")} == {"books-2": 0, "books-1": 1}
    # Each file resumes its own crawl.
    add_page(folder, site, "books-2")
    assert folder.json("run", second)["crawl"] == "books-2"
    assert folder.json("run", "books.py")["crawl"] == "books-1"


def test_a_new_crawl_beside_a_finished_one_of_another_file_says_so(folder: Folder, site: SiteProcess) -> None:
    second = rename(folder, site, "second.py")
    folder.run("run", "books.py")
    assert "share the name 'books'" in folder.run("run", second).stderr
    assert "share the name" not in folder.run("run", second, "--fresh", "--store", "second.db").stderr


def test_a_worker_leaves_the_crawl_of_another_file_alone(folder: Folder, site: SiteProcess) -> None:
    second = rename(folder, site, "second.py")
    folder.run("run", "books.py")
    add_page(folder, site)
    for options in (["--burst"], ["--crawl", "books-1"], ["--crawl", "books-1", "--burst"]):
        refusal = folder.refusal("worker", second, *options)
        assert f"books-1 belongs to {folder.path}/books.py, not to second.py: work on it with that file" in refusal
    with folder.start("worker", second) as worker:
        assert worker.stderr is not None
        said = [worker.stderr.readline(), worker.stderr.readline()]
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=60)
    assert "this worker leaves it alone" in said[0]
    assert said[1] == "waiting for a crawl of 'books'\n"
    assert folder.json("status", "books-1")["left"] == 1


def test_crawls_of_two_sites_without_code_do_not_mix(folder: Folder, site: SiteProcess) -> None:
    elsewhere = site.url.replace("127.0.0.1", "127.0.0.2")
    options = ["--allow-private", "--rate", "unlimited", "--max-pages", "3", "--set", "max_attempts=1"]
    first = folder.json("crawl", site.url, *options)
    second = folder.json("crawl", elsewhere, *options, code=1)
    assert first["spider"] != second["spider"]
    assert {first["crawl"], second["crawl"]} == {one["crawl"] for one in folder.json("status")}


@pytest.mark.parametrize("command", [("run", "books.py", "--fresh"), ("cancel", "books-1")])
def test_a_crawl_that_others_work_on_is_not_taken_from_them_without_a_word(
    folder: Folder, site: SiteProcess, command: tuple[str, ...]
) -> None:
    deed = "discard" if "--fresh" in command else "cancel"
    with running(folder, site) as process:
        refusal = folder.refusal(*command)
        assert f"books-1 is run right now by 1 worker ({os.uname().nodename}:{process.pid}:" in refusal
        assert f"stop them, or {deed} it anyway with --yes" in refusal
        assert folder.json("status", "books-1")["state"] == "running"


def test_with_yes_it_is_cancelled_all_the_same(folder: Folder, site: SiteProcess) -> None:
    with running(folder, site):
        assert folder.json("cancel", "books-1", "--yes")["state"] == "cancelled"


@pytest.mark.parametrize(("answer", "code", "state"), [(b"n\n", 2, "running"), (b"y\n", 0, "cancelled")])
def test_on_a_terminal_people_are_asked(
    folder: Folder, site: SiteProcess, answer: bytes, code: int, state: str
) -> None:
    with running(folder, site):
        ours, theirs = pty.openpty()
        with folder.start("cancel", "books-1", stdin=theirs, stderr=theirs) as process:
            asked = b""
            while b"[y/N]" not in asked:
                asked += os.read(ours, 4096)
            os.write(ours, answer)
            assert process.wait(timeout=60) == code
        assert b"Cancel it?" in asked
        assert folder.json("status", "books-1")["state"] == state
        os.close(ours)
        os.close(theirs)


def test_a_crawl_that_only_a_killed_worker_worked_on_is_discarded_at_once(folder: Folder, site: SiteProcess) -> None:
    with folder.start("run", folder.spider(site.url, rate="2/s")) as process:
        (pid,) = folder.wait_for_pages(1)
        os.kill(pid, signal.SIGKILL)
        process.wait(timeout=60)
    (gone,) = folder.json("status", "books-1")["workers"]
    assert (gone["state"], gone["pid"]) == ("gone", pid)
    assert "gone since" in folder.run("status", "books-1").stdout
    folder.spider(site.url)
    assert folder.json("run", "books.py", "--fresh")["crawl"] == "books-2"


def test_a_finished_crawl_keeps_the_page_counts_of_its_workers(folder: Folder, site: SiteProcess) -> None:
    folder.run("run", folder.spider(site.url), "--workers", "2")
    status = folder.json("status", "books-1")
    assert {one["state"] for one in status["workers"]} == {"left"}
    assert sum(one["pages"] for one in status["workers"]) == status["progress"]["done"] > PRODUCTS
    shown = folder.run("status", "books-1").stdout
    assert shown.count("  left  ") == len(status["workers"])


def test_a_file_that_was_moved_resumes_its_crawl(folder: Folder, site: SiteProcess) -> None:
    folder.run("run", folder.spider(site.url))
    add_page(folder, site)
    (folder.path / "spiders").mkdir()
    Path(folder.path / "books.py").rename(folder.path / "spiders" / "books.py")
    assert folder.json("run", "spiders/books.py")["resumed"]


def test_items_that_a_later_crawl_took_over_are_not_called_replaced(folder: Folder, site: SiteProcess) -> None:
    name = folder.spider(site.url)
    folder.run("run", name)
    folder.run("run", name, "--again")
    add_page(folder, site)
    again = folder.run("run", name, "-o", "items.csv")
    assert "resuming books-1" in again.stderr
    assert f"its pages yielded {PRODUCTS} items, of which it has 0 now: an item belongs to the crawl" in again.stderr
    assert f"books-2 has {PRODUCTS}" in again.stderr
    assert "replaced" not in again.stdout


def test_a_replay_does_not_replace_the_items_of_another_files_crawl_by_a_slip(
    folder: Folder, site: SiteProcess
) -> None:
    second = rename(folder, site, "second.py")
    folder.run("run", "books.py", "--archive", "raw")
    line = f"books-1 belongs to {folder.path}/books.py, not to second.py, which would replace its items"
    assert line in folder.refusal("replay", second)
    assert folder.json("replay", "books.py")["items"] == PRODUCTS
    assert folder.json("replay", second, "--crawl", "books-1")["items"] == PRODUCTS
