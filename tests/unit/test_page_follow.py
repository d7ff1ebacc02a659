"""`page.follow`: by a selector, by elements or by a URL, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from shop_page import SHOP, urls

from shoal import Request, Spider
from shoal.errors import SelectorError, UsageError
from shoal.spider.page import HREFS, Page
from shoal.spider.spider import handler_name
from shoal.testing.fakes import make_page


def test_follow_takes_a_selector_elements_or_a_url() -> None:
    page = make_page(SHOP)
    elements = page.css("a[href]")
    assert urls(page.follow("a[title]")) == ["https://a.test/one?b=2&a=1"]
    assert urls(page.follow(elements[1])) == ["https://a.test/dir/two.html"]
    assert urls(page.follow([elements[1], "/x", "y", "page-2.html"])) == [
        "https://a.test/dir/two.html",
        "https://a.test/x",
        "https://a.test/dir/y",
        "https://a.test/dir/page-2.html",
    ]
    assert len(list(page.follow())) == 3
    assert list(page.follow("h9")) == []
    assert list(page.follow(page.css("a:not([href])"))) == []


@pytest.mark.parametrize(
    ("href", "url"),
    [
        ("page-2.html", "https://a.test/dir/page-2.html"),
        ("a", "https://a.test/dir/a"),
        ("li.next", "https://a.test/dir/li.next"),
        ("2", "https://a.test/dir/2"),
        ("/direct", "https://a.test/direct"),
        ("?page=2", "https://a.test/dir/page?page=2"),
        ("https://x.test/", "https://x.test/"),
        ("//x.test/y", "https://x.test/y"),
    ],
)
def test_a_url_is_a_url_whatever_it_looks_like(href: str, url: str) -> None:
    page = make_page(SHOP)
    assert urls(page.follow(url=href)) == [url]
    assert urls(page.follow(url=[href, href])) == [url]


def test_the_href_of_an_element_is_followed_as_a_url() -> None:
    page = make_page(SHOP)
    assert urls(page.follow(url=page.css("a")[1])) == ["https://a.test/dir/two.html"]
    assert urls(page.follow(url=page.css("a[title]"))) == ["https://a.test/one?b=2&a=1"]


@pytest.mark.parametrize("href", ["", " ", None, [], [None, ""], "#", "#top"])
def test_an_href_that_leads_to_no_page_is_no_request(href: Any) -> None:
    page = make_page(SHOP)
    assert list(page.follow(url=href)) == []
    assert list(page.follow(url=page.attr("li.next a", "href"))) == []
    assert list(page.follow(url=page.attr("li.next a", "href", None))) == []  # type: ignore[arg-type]  # as people do


@pytest.mark.parametrize(
    "text",
    [
        "/page-2",
        "./page-2",
        "../x",
        "?page=2",
        "http://x.test/",
        "https://x.test/",
        "//x.test/",
        "page-2.html",
        "x.PHP",
    ],
)
def test_a_url_in_place_of_a_selector_is_refused_where_it_is_written(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_page(SHOP).follow(text)
    assert str(caught.value) == f"page.follow({text!r}): that is a URL, write page.follow(url={text!r})"


@pytest.mark.parametrize("text", ["#next", "a.pdf", "li.html a", ".html", "a[href$='x.html']", "div.json", "A.PDF"])
def test_a_selector_that_ends_like_a_file_is_a_selector(text: str) -> None:
    assert list(make_page(SHOP).follow(text)) == []


def test_an_href_that_parses_as_a_selector_is_refused_on_its_page() -> None:
    page = make_page("<a href=next>next</a><a class=more href=/more>more</a><a href=section.news>news</a>")
    for text in ("next", "section.news"):
        with pytest.raises(
            UsageError, match=rf"page\.follow\('{text}'\): no element .* write page\.follow\(url='{text}'\)"
        ):
            list(page.follow(text))
    assert list(page.follow("nothing")) == []
    assert urls(page.follow("a.more")) == ["https://a.test/more"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("",), "an empty text is no selector; if it is the href of a link"),
        ((None,), r"page\.follow\(None\): no selector; if it is the href of a link, write"),
        ((7,), "page.follow takes a selector, elements or url=, not int"),
        ((handler_name,), r"the handler comes second, as in page.follow\('a\[href\]', self.handler_name\)"),
        (([["/a"]],), "page.follow takes hrefs and elements, not list"),
    ],
)
def test_what_cannot_be_followed_is_named(arguments: Any, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        list(make_page(SHOP).follow(*arguments))


def test_a_selector_and_a_url_at_once_are_refused() -> None:
    with pytest.raises(UsageError, match="a selector or url=, not both"):
        make_page(SHOP).follow("a", url="/x")


def test_a_page_remembers_which_selectors_led_somewhere() -> None:
    page = make_page(SHOP)
    list(page.follow("li a"))
    page.follow("h8 a")  # never looked up
    list(page.follow("h9 a"))
    list(page.follow(page.css("h9")))
    list(page.follow(url="/x"))
    assert page.follows == [("li a", True), ("h9 a", False), (HREFS, False), (HREFS, True)]
    assert page.unused_follows == ["h8 a"]


def test_follow_is_lazy_and_passes_its_options_on() -> None:
    class Shop(Spider):
        def item(self, page: Page) -> None: ...

    broken = make_page(SHOP).follow("a[[")  # nothing is looked up yet
    with pytest.raises(SelectorError, match="no CSS selector"):
        list(broken)
    [request] = make_page(SHOP).follow("a[title]", Shop().item, priority=3, meta={"a": 1})
    assert request == Request("https://a.test/one?b=2&a=1", handler="item", priority=3, meta={"a": 1})
    [request] = make_page(SHOP).follow(url="/x", handler=Shop().item, priority=3)
    assert request == Request("https://a.test/x", handler="item", priority=3)
    assert handler_name("item") == "item"
    assert handler_name(None) is None
