"""Workers whose spider's files differ from those that the crawl works with: refused, told otherwise, and shown."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from command_line import Folder, Started

from shoal.testing.sites.site_process import SiteProcess
from shoal.testing.waiting import wait_until

PRODUCTS = 24
SLOW = "0.5/s"  # nobody is done before the test lets the crawl go


@pytest.fixture
def spider(folder: Folder, site: SiteProcess) -> str:
    """The file of a spider that imports a module beside it, and has made a crawl that lacks one page."""
    name = with_module(folder, site)
    folder.run("run", name)
    assert folder.json("add", "books-1", f"{site.url}catalogue/page-1.html?again=1")["new"] == 1
    return name


def with_module(folder: Folder, site: SiteProcess, *, rate: str = "unlimited") -> str:
    name = folder.spider(site.url, rate=rate, first="import shelves")
    file = folder.path / name
    file.write_text(f"import shelves\n{file.read_text()}")
    (folder.path / "shelves.py").write_text("SHELF = 7\n")
    return name


def change(folder: Folder, name: str) -> None:
    file = folder.path / name
    file.write_text(f"{file.read_text()}# mended\n")


def left(folder: Folder) -> int:
    number: int = folder.json("status", "books-1")["left"]
    return number


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def wait_for_line(said: Path, part: str) -> None:
    def is_there() -> bool:
        return any(part in line for line in lines_of(said))

    wait_until(is_there, otherwise=f"nobody said {part!r}")


@pytest.mark.parametrize("changed", ["books.py", "shelves.py"])
def test_a_worker_with_another_file_or_imported_module_is_refused(folder: Folder, spider: str, changed: str) -> None:
    change(folder, changed)
    line = f"books-1 runs other code of its spider than this process: {changed}; update the files of this machine"
    for command in (["worker", spider], ["worker", spider, "--burst"], ["worker", spider, "--crawl", "books-1"]):
        refusal = folder.refusal(*command)
        assert line in refusal
        assert f"shoal run {spider}` gives them to the crawl; --other-code accepts both" in refusal
    assert left(folder) == 1


def test_with_other_code_it_works_and_says_so(folder: Folder, spider: str) -> None:
    change(folder, "shelves.py")
    said = folder.run("worker", spider, "--burst", "--other-code").stderr.splitlines()
    assert said[0] == (
        "books-1 runs other code of its spider than this process: shelves.py; this worker works with its own"
    )
    assert left(folder) == 0


def test_a_run_that_resumes_gives_its_code_to_the_crawl(folder: Folder, spider: str, site: SiteProcess) -> None:
    begun = folder.json("status", "books-1")["code"]
    change(folder, "shelves.py")
    said = folder.run("run", spider).stderr
    assert "the code of its spider has changed since the last run, the new code is used: shelves.py\n" in said
    assert folder.json("status", "books-1")["code"] not in (begun, None)
    folder.json("add", "books-1", f"{site.url}catalogue/page-1.html?again=2")
    assert "runs other code" not in folder.run("worker", spider, "--burst").stderr
    assert "has changed" not in folder.run("run", spider).stderr
    change(folder, spider)
    assert "(the code of its spider has changed: books.py)" in folder.run("run", spider).stderr


def test_a_worker_that_waits_is_told_to_start_again_when_its_files_have_changed(
    folder: Folder, site: SiteProcess
) -> None:
    name, said = with_module(folder, site), folder.path / "said"
    with said.open("w") as file, folder.start("worker", name, stderr=file) as worker:
        wait_for_line(said, "waiting for a crawl of 'books'")
        change(folder, name)
        folder.run("run", name)
        # The run may have ended before the worker looked: one more page shows the crawl to it.
        folder.run("add", "books-1", f"{site.url}catalogue/page-1.html?again=1")
        assert worker.wait(60) == 2
    assert lines_of(said)[-1] == (
        f"shoal: books-1 runs other code of its spider than this process: {name}; they have changed since this worker"
        " loaded them: restart it"
    )


def test_old_and_new_workers_side_by_side_are_counted(folder: Folder, site: SiteProcess) -> None:
    name, said = with_module(folder, site, rate=SLOW), folder.path / "said"
    with contextlib.ExitStack() as stack:

        def started(*words: str) -> Started:
            return stack.enter_context(folder.start(*words, stderr=stack.enter_context(said.open("a"))))

        begun = started("run", name)
        folder.wait_for_pages(1)
        old = started("worker", name, "--burst", "--name", "old")
        folder.wait_for_pages(1, workers=2)
        change(folder, "shelves.py")
        new = started("worker", name, "--burst", "--name", "new", "--other-code")
        folder.wait_for_pages(1, workers=3)
        status = folder.json("status", "books-1")
        codes = {worker["worker"]: worker["code"] for worker in status["workers"]}
        assert (status["other_code"], codes["old"]) == (1, status["code"])
        assert "code: 1 worker with other code than the crawl's: new" in words(folder.run("status", "books-1").stdout)
        resumed = started("run", name)
        wait_for_line(said, "continues with its loaded code")
        status = folder.json("status", "books-1")
        assert (status["other_code"], status["code"]) == (2, codes["new"])
        folder.hurry(site.url)
        assert [process.wait(60) for process in (begun, old, new, resumed)] == [0, 0, 0, 0]
    assert sum("continues with its loaded code" in line for line in lines_of(said)) == 1


def test_a_fleet_replaces_its_workers_though_a_file_has_changed(folder: Folder, site: SiteProcess) -> None:
    name, said = with_module(folder, site, rate=SLOW), folder.path / "said"
    with said.open("w") as file, folder.start("run", name, "--workers", "2", stderr=file) as running:
        killed = folder.wait_for_pages(1, workers=2)[0]
        change(folder, name)
        os.kill(killed, signal.SIGKILL)
        wait_for_line(said, "this worker works with its own")
        folder.hurry(site.url)
        assert running.wait(60) == 0
    assert folder.json("status", "books-1")["items"] == PRODUCTS


def words(text: str) -> str:
    """The text with one blank between two words: tables are aligned by more."""
    return " ".join(text.split())
