"""Slips of a spider, as people make them: each is told in one line, and none gives wrong data in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Folder

from shoal.testing.sites.site_process import SiteProcess

PRODUCTS = 60
HEAD = """
from shoal import Item, Request, Sitemap, Spider

class Books(Spider):
    start = ["{url}catalogue/page-1.html"]
    rate = "unlimited"
    settings = {{"allow_private": True, "pace": "fixed", "retry_seconds": 0.1}}
"""


def write(folder: Folder, site: SiteProcess, *lines: str) -> str:
    text = HEAD.format(url=site.url) + "".join(f"    {line}\n" for line in lines)
    (folder.path / "books.py").write_text(text)
    return "books.py"


def summary_lines(folder: Folder, name: str, *options: str, code: int = 0) -> list[str]:
    result = folder.run("run", name, *options, code=code)
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("verb", ["yield", "yield from"])
def test_a_selector_that_matches_nowhere_and_equal_keys_are_named_in_the_summary(
    folder: Folder, site: SiteProcess, verb: str
) -> None:
    name = write(
        folder,
        site,
        "def parse(self, page):",
        f"    {verb} page.follow('article h3 a', self.book)",
        f"    {verb} page.follow('li.nxet a')",
        "def book(self, page):",
        "    yield Item(key=page.text('h1')[:0] or 'all', title=page.text('h1'))",
        "    yield Item(key='twice', a=1)",
        "    yield Item(key='twice', a=2)",
        "    yield Item(key='', a=3)",
        f"    {verb} page.follow('.no-such-thing a')",
    )
    lines = summary_lines(folder, name, "--workers", "2")
    books = folder.json("sql", "SELECT count(*) AS n FROM items WHERE key LIKE 'http%'")["n"]
    assert "no link li.nxet a matched on 0 of 1 page (parse)" in lines
    assert f"no link .no-such-thing a matched on 0 of {books} pages (book)" in lines
    assert f"{4 * books - books - 2} items replaced by later ones with the same key" in lines
    assert f"no key {books} items have an empty key: stored under the page's URL" in lines
    (same,) = [line for line in lines if line.startswith("same key ")]
    assert f"several items with the key 'twice' on one page ({books} pages): only the last is kept, as on http" in same
    assert not [line for line in lines if "article h3 a matched" in line]


def test_a_right_spider_is_told_nothing(folder: Folder, site: SiteProcess) -> None:
    summary = folder.json("run", folder.spider(site.url), "--workers", "2")
    assert summary["slips"] == {
        "yielded": PRODUCTS,
        "keyless": 0,
        "unmatched": [],
        "unused": [],
        "same_keys": [],
        "rule": "replace",
    }
    lines = summary_lines(folder, folder.spider(site.url))
    assert not [line for line in lines if "matched" in line or "same key" in line or "empty key" in line]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "page.follow(page.attr('li.next a', 'href'))",
            "page.follow('page-2.html'): that is a URL, write page.follow(url=",
        ),
        ("page.follow('li.next a', 'boook')", "Books has no handler 'boook': did you mean 'book'?"),
        ("Request('/x', handler='boook')", "Books has no handler 'boook': did you mean 'book'?"),
        ("page.follow('li.next a[')", "'li.next a[' is no CSS selector"),
        ("Item(a=1)", "item_key 'ski': the item has no such field; it has a"),
    ],
)
def test_a_slip_in_a_handler_is_a_dead_letter_with_its_line(
    folder: Folder, site: SiteProcess, line: str, said: str
) -> None:
    name = write(
        folder, site, "item_key = 'ski'", "def book(self, page): ...", "def parse(self, page):", f"    yield {line}"
    )
    folder.run("run", name, "--set", "max_attempts=4", code=1)
    (letter,) = folder.json("dead", "list", "-v")
    assert said in letter["reason"]
    assert letter["attempts"] == 1
    number = (folder.path / name).read_text().splitlines().index(f"        yield {line}") + 1
    assert f'books.py", line {number}, in parse' in letter["detail"]


def test_an_element_as_a_field_is_a_dead_letter_that_names_the_field(folder: Folder, site: SiteProcess) -> None:
    name = write(
        folder,
        site,
        "def parse(self, page):",
        "    yield {'offers': [{'price': page.css('article')[0]}]}",
        "    yield page.follow('li.next a', self.rest)",
        "def rest(self, page):",
        "    yield {'title': page.text}",
        "    yield Item(key='good', title=page.text('title'))",
    )
    folder.run("run", name, code=1)
    reasons = sorted(letter["reason"] for letter in folder.json("dead", "list"))
    assert [reason.partition(": field ")[2] for reason in reasons] == [
        "offers.0.price is an Element: did you mean page.text(…) or element.text()?",
        "title is a method: did you forget ()?",
    ]
    assert folder.json("sql", "SELECT key FROM items") == {"key": "good"}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["def book(self, page): ..."], "Books has no parse method, and a request names no other handler: write one"),
        (
            ["start = [Sitemap('http://a.test/', handler='boook')]", "def book(self, page): ..."],
            "Books has no handler 'boook': did you mean 'book'?",
        ),
        (
            ["def __init__(self, shop): ...", "def parse(self, page): ..."],
            "Books.__init__ needs shop: give -a shop=…, or give them defaults",
        ),
        (["raet = '4/s'", "def parse(self, page): ..."], "unknown setting 'raet' (spider Books); did you mean 'rate'?"),
    ],
)
def test_a_spider_that_cannot_run_is_refused_before_anything_begins(
    folder: Folder, site: SiteProcess, lines: list[str], said: str
) -> None:
    hits = len(site.hits())
    assert said in folder.refusal("run", write(folder, site, *lines))
    assert not Path(folder.path / "shoal.db").exists()
    assert len(site.hits()) == hits


def test_a_generated_start_with_a_wrong_handler_ends_the_command_in_one_line(folder: Folder, site: SiteProcess) -> None:
    name = write(
        folder,
        site,
        f"def start(self): yield Request('{site.url}', handler='boook')",
        "def parse(self, page): ...",
    )
    result = folder.run("run", name, code=2)
    assert result.stderr.splitlines()[-1] == "shoal: Books has no handler 'boook': write one, or name another"
