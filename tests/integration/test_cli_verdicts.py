"""Return codes and early stops of `shoal run`, `crawl` and `worker`, as a script sees them."""

from __future__ import annotations

import re

import pytest
from command_line import Folder

from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 120
FAILS = "{}['price']"
LINE = 14  # of the first statement of `book` in the spider's file


def test_a_handler_that_fails_on_its_first_pages_stops_the_run_and_a_mended_one_goes_on(
    folder: Folder, site: SiteProcess
) -> None:
    name = folder.spider(site.url, first=FAILS)
    result = folder.run("run", name, "--set", "max_attempts=1", code=1)
    reason = f"book failed on its first 50 pages: KeyError: 'price' at books.py:{LINE}"
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0].startswith("books-1 paused: ")
    assert f"paused {reason}" in lines
    assert f"failed 50 pages: KeyError: 'price' at books.py:{LINE} (50)" in lines
    (step,) = [line for line in lines if line.startswith("next ")]
    assert re.fullmatch(
        rf"next fix books.py:{LINE}, then: \S.* dead requeue books-1 && \S.* run books.py --set max_attempts=1", step
    )
    assert f"paused: {reason}" in folder.run("status", "books-1").stdout
    folder.spider(site.url)
    folder.run("dead", "requeue", "books-1")
    summary = folder.json("run", name)
    assert (summary["crawl"], summary["state"], summary["dead"], summary["items"]) == (
        "books-1",
        "finished",
        0,
        PRODUCTS,
    )
    assert summary["failures"] == summary["faults"] == []


def test_the_processes_of_a_fleet_end_with_the_run_that_is_stopped(folder: Folder, site: SiteProcess) -> None:
    name = folder.spider(site.url, first=FAILS)
    summary = folder.json("run", name, "--workers", "2", "--set", "stop_after_failures=5", code=1)
    assert (summary["state"], summary["interrupted"]) == ("paused", False)
    assert summary["reason"].startswith("book failed on its first 5 pages: KeyError: 'price' at books.py:")


def test_failures_over_the_limit_are_exit_1_with_the_exception_and_its_line(folder: Folder, site: SiteProcess) -> None:
    (folder.path / "prices.py").write_text("def price(page):\n    return {}[page.text('h1')[:3]]\n")
    first = "import prices; prices.price(page) if '-1' in page.url or '-2' in page.url else 0"
    name = folder.spider(site.url, first=first)
    once = ("--set", "max_attempts=1", "--set", "stop_after_failures=0")
    good = folder.run("run", name, *once)
    assert "KeyError" in good.stdout
    assert "at prices.py:2 (" in good.stdout
    assert "code 1" not in good.stdout
    summary = folder.json("run", name, *once, "--set", "max_failures=5%", code=1)
    first_failure = summary["failures"][0]
    assert (first_failure["reason"], first_failure["at"]) == ("KeyError", "prices.py:2")
    assert first_failure["pages"] == summary["dead"]
    assert first_failure["message"]
    (fault,) = summary["faults"]
    assert fault.endswith("more than max_failures=5%")
    strict = folder.run("run", name, *once, "--strict", code=1)
    assert "none may (max_failures=0)" in strict.stdout


@pytest.mark.parametrize(
    ("path", "options", "fault"),
    [
        ("nothing-here.html", ("--allow-private",), "every start URL failed: http_404 (1)"),
        ("private/stock-0.html", ("--allow-private",), "every start URL failed: robots (1)"),
        ("", (), "every start URL failed: refused_address (1)"),
    ],
)
def test_a_crawl_that_gets_none_of_its_start_urls_is_exit_1(
    folder: Folder, site: SiteProcess, path: str, options: tuple[str, ...], fault: str
) -> None:
    summary = folder.json("crawl", f"{site.url}{path}", *options, code=1)
    assert summary["state"] == "finished"
    assert summary["faults"][-1] == fault


def test_one_good_start_url_is_enough(folder: Folder, site: SiteProcess) -> None:
    urls = [f"{site.url}nothing-here.html", f"{site.url}catalogue/page-1.html"]
    assert folder.json("crawl", *urls, "--allow-private", "--depth", "1", "--rate", "unlimited")["faults"] == []


def test_a_burst_worker_tells_the_failure_of_the_crawl_it_finished(folder: Folder, site: SiteProcess) -> None:
    name = folder.spider(site.url, first=FAILS)
    folder.run("run", name, "--max-pages", "20", "--set", "max_attempts=1", code=1)
    folder.run("dead", "requeue", "books-1")
    result = folder.run("worker", name, "--burst", code=1)
    assert "books-1 failed: " in result.stderr
    folder.spider(site.url)
    folder.run("dead", "requeue", "books-1")
    # The mended file: the crawl remembers the one that failed.
    assert "failed" not in folder.run("worker", name, "--burst", "--other-code").stderr


def test_an_error_without_a_line_of_the_spider_says_what_it_is(folder: Folder, site: SiteProcess) -> None:
    (folder.path / "shop.py").write_text(
        "from shoal import Spider\n\n\nclass Shop(Spider):\n"
        f"    start = {site.url!r}\n    settings = {{'allow_private': True}}\n\n"
        "    def parse(self, page):\n        page.follow('a')\n"
    )
    result = folder.run("run", "shop.py", code=1)
    assert "failed  1 page: UsageError: the handler calls page.follow and returns nothing" in result.stdout
