"""What becomes of the hrefs of a page: where they lead, and which rule keeps one out."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from url_strategies import BASE, BASES, EVERYTHING, HREFS, rules

from shoal.urls.canonical import REASONS, Link, UrlRules, key_of


def test_a_link_knows_its_url_key_lane_and_whether_it_was_merged() -> None:
    link = rules().resolve("/a?b=2&a=1&utm_medium=mail#top", BASE)
    assert link.url == "https://example.com/a?b=2&a=1&utm_medium=mail"
    assert link.key == key_of("https://example.com/a?a=1&b=2")
    assert (link.lane, link.merged, link.rejected) == ("example.com", True, None)
    assert not rules().resolve("/a?a=1&b=2", BASE).merged


@pytest.mark.parametrize(
    ("href", "expected"),
    [
        ("", "https://example.com/shop/list?page=2"),
        ("#top", "https://example.com/shop/list?page=2"),
        ("?page=3", "https://example.com/shop/list?page=3"),
        ("item", "https://example.com/shop/item"),
        ("../item", "https://example.com/item"),
        ("https:item", "https://example.com/shop/item"),
        ("https:?page=4", "https://example.com/shop/list?page=4"),
        ("//example.com/x", "https://example.com/x"),
        ("/\t/example.com/x", "https://example.com/x"),
        ("\\x\\y", "https://example.com/x/y"),
        (" /a\nb ", "https://example.com/ab"),
        ("a\0b", "https://example.com/shop/a%00b"),
        ("https:///example.com/x", "https://example.com/x"),
    ],
)
def test_hrefs_resolve_as_in_a_browser(href: str, expected: str) -> None:
    shared = rules()
    assert [shared.resolve(href, BASE).url for _ in range(2)] == [expected, expected]


@pytest.mark.parametrize(
    ("href", "reason"),
    [
        ("http://", "invalid_url"),
        ("https://exa mple.com/", "invalid_url"),
        ("https://example.com:99999/", "invalid_url"),
        ("\ud800", "invalid_url"),
        ("mailto:me@example.com", "scheme"),
        ("javascript:void(0)", "scheme"),
        ("ftp://example.com/", "scheme"),
        ("https://me:secret@example.com/x", "credentials"),
        ("/" + "x" * 2048, "url_too_long"),
        ("/" + "x" * 100_000, "url_too_long"),
        ("/a" * 21, "path_too_deep"),
        ("/a/b/a/b/a/b/a", "path_repeats"),
        ("https://other.example/", "out_of_scope"),
        ("http://example.com:8080/", "out_of_scope"),
        ("/private/x", "denied"),
        ("/shop/cart?add=1", "denied"),
    ],
)
def test_each_rule_that_keeps_a_link_out_has_a_name(href: str, reason: str) -> None:
    subject = rules(deny=("/private/", r"\?add="))
    link = subject.resolve(href, BASE)
    assert link.rejected == reason
    assert reason in REASONS
    assert len(link.url) <= 2048
    link.url.encode()


def test_check_names_the_rule_for_one_url() -> None:
    subject = rules(deny=("logout",))
    assert subject.check("https://example.com/a") is None
    assert subject.check("https://example.com/logout") == "denied"
    assert subject.check("https://other.example/") == "out_of_scope"
    assert subject.check("example.com") == "invalid_url"


def test_at_the_limits_a_link_is_still_taken() -> None:
    subject = rules()
    segments = "/".join(f"s{number}" for number in range(20))
    for href in (f"/{segments}", f"/{segments}/", "/a/a/a", "/" + "x" * (2048 - len("https://example.com/"))):
        assert subject.resolve(href, BASE).rejected is None


def test_a_password_never_reaches_the_link() -> None:
    link = rules().resolve("https://me:s%40cret@example.com/x?y=@z", BASE)
    assert link.url == "https://example.com/x?y=@z"
    assert (link.lane, link.rejected) == ("example.com", "credentials")


def test_out_of_scope_is_said_only_when_nothing_else_is_wrong() -> None:
    subject = rules(deny=("/private/",))
    assert subject.resolve("https://other.example/private/", BASE).rejected == "denied"
    outside = subject.resolve("https://other.example/a/1", BASE)
    inside = UrlRules(EVERYTHING).resolve("https://other.example/a/1", BASE)
    assert (outside.shape, outside.key, outside.lane) == (inside.shape, inside.key, inside.lane)


def test_a_page_gives_each_key_once_in_order_without_what_is_no_page() -> None:
    hrefs = [
        "/b",
        "#top",
        "",
        "/a?x=1&y=2",
        "mailto:me@example.com",
        " JavaScript:void(0)",
        "tel:1",
        "data:,x",
        "/b#part",
    ]
    hrefs += ["/a?y=2&x=1", "https://other.example/", "b", "ftp://example.com/", "/b", "about", "data/x"]
    subject = rules()
    for _ in range(2):
        links = subject.resolve_all(hrefs, "https://example.com/")
        assert [link.url for link in links if not link.rejected] == [
            "https://example.com/b",
            "https://example.com/a?x=1&y=2",
            "https://example.com/about",
            "https://example.com/data/x",
        ]
        assert [link.rejected for link in links if link.rejected] == ["out_of_scope", "scheme"]


@given(st.lists(HREFS, max_size=8), BASES)
@example(["/a?utm_source=x", "a", "/a", "https://example.com/a", "/b?y&x", "#top", "//other.example/"], BASE)
def test_links_sorted_out_are_the_links_resolved(hrefs: list[str], base: str) -> None:
    subject = rules()
    for _ in range(2):
        plain, others = subject.sort_out(hrefs, base)
        assert all(subject.resolve(href, base).key == key for key, href in plain.items())
        assert all(subject.resolve(href, base).is_plain for href in plain.values())
        assert not any(link.is_plain for link in others)
        resolved = subject.resolve_all(hrefs, base)
        assert {*plain, *(link.key for link in others)} == {link.key for link in resolved}
        assert {link for link in resolved if not link.is_plain} <= set(others)


@given(st.text() | HREFS, st.text() | BASES)
@example("\ud800", "https://example.com/")
@example("x", "\ud800")
@example("x", "about:blank")
@example("x" * 100_000, "https://example.com/")
def test_no_text_makes_resolve_raise(href: str, base: str) -> None:
    subject = rules()
    link = subject.resolve(href, base)
    assert isinstance(link, Link)
    assert link.rejected is None or link.rejected in REASONS
    assert -(2**63) <= link.key < 2**63
    link.url.encode()
    assert len(subject.resolve_all([href, href], base)) <= 1
