"""Links on pages in a legacy charset: every way that leads to a task asks for their queries in that charset."""

from __future__ import annotations

from typing import Any

import pytest

from shoal import Request
from shoal.journey.harvest import Harvest
from shoal.journey.intake import Intake
from shoal.settings.table import Settings
from shoal.spider.page import Page
from shoal.testing.fakes import make_page
from shoal.urls.canonical import UrlRules

BODY = "<a href='/道?q=日本&amp;x=☃'>1</a><a href='/plain?q=1'>2</a>"
IN_SHIFT_JIS = ["https://a.test/%E9%81%93?q=%93%FA%96{&x=%26%239731%3B", "https://a.test/plain?q=1"]
IN_UTF8 = ["https://a.test/%E9%81%93?q=%E6%97%A5%E6%9C%AC&x=%E2%98%83", "https://a.test/plain?q=1"]


def shift_jis(body: str = BODY, **task: Any) -> Page:
    # ☃ is not in the charset: it came into the page as a character reference.
    return make_page(body.replace("☃", "&#9731;").encode("cp932"), kind="text/html; charset=Shift_JIS", **task)


def tasks(page: Page, *outputs: Any, **settings: Any) -> list[str]:
    return [task.url for task in harvest(page, *outputs, **settings).found.tasks.values()]


def harvest(page: Page, *outputs: Any, **settings: Any) -> Harvest:
    values = Settings(**settings)
    collected = Harvest(page, intake=Intake(UrlRules(values, start_hosts=["a.test"]), values), item_key="")
    for output in outputs:
        collected.add(output)
    return collected


def test_links_and_absolute_give_the_query_in_the_charset_of_the_page() -> None:
    page = shift_jis()
    assert page.links() == IN_SHIFT_JIS
    assert page.absolute(page.hrefs()) == IN_SHIFT_JIS
    assert page.hrefs() == ["/道?q=日本&x=☃", "/plain?q=1"]


def test_a_yielded_follow_asks_in_the_charset_of_the_page() -> None:
    assert tasks(shift_jis(), shift_jis().follow()) == IN_SHIFT_JIS
    assert tasks(shift_jis(), shift_jis().follow(url="?q=日本")) == ["https://a.test/dir/page?q=%93%FA%96{"]
    assert tasks(shift_jis(), shift_jis().follow(shift_jis().css("a"))) == IN_SHIFT_JIS
    assert tasks(shift_jis(), shift_jis().follow(shift_jis().css("a")[0], key="mine")) == IN_SHIFT_JIS[:1]


def test_an_iterated_follow_asks_in_the_charset_of_the_page() -> None:
    page = shift_jis()
    assert [request.url for request in page.follow()] == IN_SHIFT_JIS
    assert tasks(page, *page.follow()) == IN_SHIFT_JIS


@pytest.mark.parametrize("url", ["/?q=日本", "https://a.test/?q=日本", "../?q=%93%FA%96%7b"])
def test_a_request_asks_in_the_charset_of_its_page(url: str) -> None:
    [asked] = tasks(shift_jis(), Request(url))
    assert asked in ("https://a.test/?q=%93%FA%96{", "https://a.test/?q=%93%FA%96%7B")


def test_a_base_on_another_host_changes_nothing_about_the_charset() -> None:
    page = shift_jis("<base href='https://b.test/'><a href='?日'></a>")
    assert tasks(page, page.follow(), Request("?本"), allow=("b.test",)) == [
        "https://b.test/?%93%FA",
        "https://b.test/?%96{",
    ]


def test_links_that_are_kept_out_are_named_as_they_would_be_asked_for() -> None:
    page = shift_jis("<a href='?日'></a>", depth=1)
    assert harvest(page, page.follow(), max_depth=1).found.samples == [("depth", "https://a.test/dir/page?%93%FA")]


@pytest.mark.parametrize(
    ("body", "kind"),
    [(BODY.encode(), "text/html; charset=utf-8"), (BODY.encode("utf-16"), "text/html"), (BODY.encode(), "text/html")],
)
def test_pages_in_unicode_ask_in_utf8(body: bytes, kind: str) -> None:
    page = make_page(body, kind=kind)
    assert page.links() == tasks(page, page.follow()) == [request.url for request in page.follow()] == IN_UTF8
    assert tasks(page, Request("?日")) == ["https://a.test/dir/page?%E6%97%A5"]
