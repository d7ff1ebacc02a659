"""Links that were resolved before: the memo says what a parser would say, and stays small."""

from __future__ import annotations

from ada_url import join_url
from hypothesis import example, given
from hypothesis import strategies as st
from url_strategies import BASE, BASES, EVERYTHING, HREFS, rules

from shoal.urls.canonical import UrlRules, canonical
from shoal.urls.link_memo import LinkBase, Memo, name_of, names_of


def test_pages_of_one_origin_share_the_links_they_have_in_common() -> None:
    subject = rules()
    first = subject.resolve("/p/1", "https://example.com/a/b?c")
    assert subject.resolve("/p/1", "https://example.com/") is first
    assert subject.resolve("../p/1", "https://example.com/q/r") is first
    assert subject.resolve("../../../p/1", "https://example.com/q/r") is first
    assert subject.resolve("1", "https://example.com/p/2") is first
    assert subject.resolve("https://example.com/p/1", "https://example.com/") is first
    whole = subject.resolve("https://example.com/p/3", "https://example.com/")
    assert subject.resolve("/p/3", "https://example.com/x/") is whole
    assert subject.resolve("/p/1", "http://example.com/").url == "http://example.com/p/1"


@given(st.lists(st.tuples(HREFS, BASES), min_size=1, max_size=8))
@example([("/\t/x", "https://example.com/"), ("\t/x", "https://example.com//")])
@example([("x", "https://example.com/a/.."), ("/a/x", "https://example.com/")])
@example([("?q", "https://example.com//a/b"), ("//a/b?q", "https://example.com/")])
@example([("..//x", "https://example.com/a/"), ("//x", "https://example.com/")])
@example([("../x", "https://example.com/a/../b"), ("/a/x", "https://example.com/")])
@example([("http:2", "http://user@h"), ("http:2", "http://h/")])
@example([("/\t/x", "https://example.com/"), ("https://example.com/\t/x", "https://example.com/")])
@example([("//x", "https://example.com/"), ("https://example.com//x", "https://example.com/")])
@example([("/x", "http://user@h/a/"), ("http://user@h/a//x", "http://user@h/a/")])
@example([("https:?q", "https://example.com/a"), ("https:?q", "https://example.com/b")])
def test_what_is_remembered_is_what_a_parser_would_say(found: list[tuple[str, str]]) -> None:
    shared = UrlRules(EVERYTHING)
    for href, base in found + found:
        link = shared.resolve(href, base)
        assert link == UrlRules(EVERYTHING).resolve(href, base)
        if link.rejected is None:
            assert canonical(link.url) == link.url
            assert link.url == UrlRules(EVERYTHING).resolve(join_url(base, href)).url
            assert shared.resolve_all([href], base) in ([link], [])


@given(st.lists(HREFS), st.sampled_from(["/", "/a/", "/a/b/", ""]))
@example(["x", "../x", "../../x", ".", "", "..", "../:", "x:y", "../x:y", "..//h"], "/a/")
def test_the_names_of_many_hrefs_are_those_of_each(hrefs: list[str], folder: str) -> None:
    base = LinkBase(BASE, BASE, "https://example.com", folder, folder and folder + "page", Memo())
    assert names_of(hrefs, base) == [name_of(href, base) for href in hrefs]


@given(st.lists(HREFS, max_size=12), BASES)
def test_links_that_are_sorted_out_are_those_that_are_resolved(hrefs: list[str], base: str) -> None:
    subject = UrlRules(EVERYTHING)
    for _ in range(2):  # unknown to the memo, then known
        links = [link for href in hrefs if (link := subject.resolve_page(href, base))]
        plain, others = subject.sort_out(hrefs, base)
        assert set(plain) == {link.key for link in links if link.is_plain}
        assert {link.key for link in others} == {link.key for link in links if not link.is_plain}
        assert all(subject.resolve(href, base).key == key for key, href in plain.items())


def test_the_memo_forgets_before_it_outgrows_its_bound() -> None:
    subject = UrlRules(EVERYTHING, memo_bytes=50_000)
    kept = subject.resolve("/kept", BASE)
    for number in range(2_000):
        subject.resolve(f"/p/{number}", f"https://h{number % 70}.example/")
        assert sum(len(memo.links) for memo in subject._memos.values()) < 250
    again = subject.resolve("/kept", BASE)
    assert again == kept
    assert again is not kept
