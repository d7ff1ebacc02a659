"""What a handler is given: parsing, text, links and encodings, whatever the bytes are."""

from __future__ import annotations

import gzip
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shop_page import SHOP, urls

from shoal.errors import SelectorError
from shoal.spider.element import Element
from shoal.spider.markup import MarkupLimits, UnfitMarkup, check_markup
from shoal.spider.page import TurnedAway
from shoal.testing.fakes import make_page

DEEPEST = 1_000


def test_css_gives_elements_with_text_and_attributes() -> None:
    page = make_page(SHOP)
    found = page.css("li a")
    assert [element.text() for element in found] == ["1", "2", "again", "mail", "away", "no href"]
    assert found[0].attr("title") == "One"
    assert found[0].attr("rel") == ""
    assert found[0].attr("rel", "none") == "none"
    assert (found[0].tag, repr(found[0])) == ("a", "<Element a>")
    assert found[0].html.startswith("<a href=")
    assert [inner.text() for inner in page.css("ul")[0].css("a[title]")] == ["1"]
    assert page.css("ul")[0].text("a[title]") == "1"
    assert page.css("ul")[0].text("h9", "nothing") == "nothing"


def test_text_is_folded_and_has_a_default() -> None:
    page = make_page(SHOP)
    assert page.text("h1") == "A bold name"
    assert page.text("title") == "The Shop"
    assert page.text("h2") == ""
    assert page.text("h2", "none") == "none"
    assert page.text().startswith("A bold name")
    assert page.attr("a", "title") == "One"
    assert page.attr("a", "rel", "none") == page.attr("h9", "rel", "none") == "none"


def test_hrefs_are_those_of_the_tree_as_the_handler_has_changed_it() -> None:
    page = make_page("<a href=1>1</a><a href=2>2</a>")
    page.hrefs().clear()
    assert page.hrefs() == ["1", "2"]
    page.css("a")[0].node.decompose()
    assert page.hrefs() == ["2"]
    page.tree.css("a")[0].decompose()
    assert page.hrefs() == []


def test_hrefs_of_two_selectors_are_not_mixed_up() -> None:
    page = make_page("<a href=1>1</a><b><a href=2>2</a></b>")
    assert [page.hrefs(), page.hrefs("b a"), page.hrefs(), page.hrefs("b a")] == [["1", "2"], ["2"], ["1", "2"], ["2"]]


TAGS = """\
<a href=1>|<A HREF='2'>|</a>|<a>|<a name=x>|<a href>|<p>|</p>|<div>|</div>|<svg>|</svg>|<a xlink:href=3>|<math>
<template>|</template>|<table>|<tr>|<td>|</table>|<select>|<option>|</select>|<b>|</b>|<script>|</script>|<noscript>
</noscript>|<!--|-->|<iframe>|</iframe>|<textarea>|</textarea>|<foreignObject>|<abbr href=4>|<frameset>|<html>|<body>
<form>|</form>|<button>|<area href=5>|<a/href=6>|text"""
SOUP = st.lists(st.sampled_from(re.split(r"[|\n]", TAGS)), max_size=25).map(" ".join)


@given(SOUP)
def test_all_links_are_those_that_a_selector_finds(soup: str) -> None:
    page = make_page(soup)
    assert page.hrefs() == page.hrefs("a[ href ]") == [href for a in page.css("a[href]") if (href := a.attr("href"))]


def test_an_attribute_without_a_value_reads_as_the_default() -> None:
    page = make_page("<input checked><a href>x</a>")
    assert page.attr("input", "checked", "no") == "no"
    assert page.hrefs() == []


def test_links_are_absolute_and_once_each() -> None:
    page = make_page(SHOP)
    assert page.links() == [
        "https://a.test/one?b=2&a=1",
        "https://a.test/dir/two.html",
        "https://other.test/x",
    ]
    assert page.hrefs("a[title]") == ["/one?b=2&a=1"]


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("<base href='/root/'>", "https://a.test/root/x"),
        ("<BaSe href='/root/'>", "https://a.test/root/x"),
        ("<BASE HREF='https://cdn.test/y/z'>", "https://cdn.test/y/x"),
        ("<Base href='/root/'>", "https://a.test/root/x"),
        ("<base href='javascript:1'>", "https://a.test/dir/x"),
        ("<base target=_blank>", "https://a.test/dir/x"),
        ("<!-- <base href='/no/'> -->", "https://a.test/dir/x"),
    ],
)
def test_relative_links_are_relative_to_the_base(base: str, expected: str) -> None:
    page = make_page(f"<head>{base}</head><a href=x>x</a>")
    assert page.links() == [expected]
    assert urls(page.follow("a")) == [expected]


@pytest.mark.parametrize(
    ("selector", "advice"),
    [
        ("a[[", ""),
        ("li.next a::attr(href)", ": attributes are read with page.attr(selector, name)"),
        ("h1::text", ": text is read with page.text(selector)"),
        ("//h1", ": it looks like XPath, or like a URL"),
        ("", ": it is empty"),
    ],
)
def test_a_selector_that_does_not_parse_is_quoted(selector: str, advice: str) -> None:
    page = make_page(SHOP)
    element = page.css("ul")[0]
    for look in (page.css, page.text, page.hrefs, page.links, element.css, element.text, lambda it: page.attr(it, "x")):
        with pytest.raises(SelectorError) as caught:
            look(selector)
        assert str(caught.value) == f"{selector!r} is no CSS selector{advice}"
    with pytest.raises(SelectorError, match="a CSS selector is a text, not NoneType"):
        page.css(None)  # type: ignore[arg-type]  # as people do


def test_json_pages() -> None:
    kind = "application/json"
    assert make_page('{"a": [1, "é"]}', kind=kind).json() == {"a": [1, "é"]}
    assert make_page('{"a": "é"}'.encode("latin-1"), kind=kind).json() == {"a": "é"}
    assert make_page(b'\xef\xbb\xbf{"a": 1}', kind=kind).json() == {"a": 1}
    assert make_page('{"a": 1}'.encode("utf-16"), kind=kind).json() == {"a": 1}
    assert not make_page("{}", kind=kind).is_html
    assert make_page('{"a": 1}', kind=kind).text() == '{"a": 1}'


@pytest.mark.parametrize("body", [b"", b"{", b"<html>", b"\xff\xfe\x00", b"[" * 100_000])
def test_what_is_not_json_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        make_page(body, kind="application/json").json()


def test_xml_pages() -> None:
    kind = "application/xml"
    root = make_page('<r xmlns="urn:u" id="1"><c x="2">é</c></r>', kind=kind).xml()
    assert (root.tag, root.attrib, root.findtext("{urn:u}c")) == ("{urn:u}r", {"id": "1"}, "é")
    for charset in ("windows-1252", "shift_jis", "utf-16", "utf-8"):
        text = "日本" if charset == "shift_jis" else "é"
        body = f'<?xml version="1.0" encoding="{charset}"?><r>{text}</r>'.encode(charset)
        assert make_page(body, kind=kind).xml().text == text
    assert make_page("<r>é</r>".encode("latin-1"), kind="text/xml; charset=iso-8859-1").xml().text == "é"
    assert make_page('\n <?xml version="1.0"?><r/>', kind=kind).xml().tag == "r"
    assert make_page('<?xml version="1.0" encoding="klingon"?><r/>', kind=kind).xml().tag == "r"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<a>",
        b"{}",
        b"\x00\xff",
        b'<!DOCTYPE r [<!ENTITY x "y">]><r>&x;</r>',
        b'<!DOCTYPE r [<!ENTITY % x "y">]><r/>',
        b'<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]><r>&x;</r>',
        b"<r>&undeclared;</r>",
    ],
)
def test_bad_xml_and_entities_are_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"XML|entities"):
        make_page(body, kind="text/xml").xml()


@pytest.mark.parametrize(
    ("body", "kind", "encoding", "text"),
    [
        ("<p>café</p>".encode(), "text/html", "utf-8", "café"),
        ("<p>café</p>".encode("latin-1"), "text/html; charset=ISO-8859-1", "windows-1252", "café"),
        ("<meta charset=windows-1251><p>дом</p>".encode("cp1251"), "text/html", "windows-1251", "дом"),
        ("\ufeff<p>café</p>".encode(), "text/html; charset=latin-1", "utf-8", "café"),
        ("<p>café</p>".encode("utf-16"), "text/html", "utf-16le", "café"),
        ("<p>café</p>".encode("latin-1"), "", "windows-1252", "café"),
        ("<p>café</p>".encode(), "text/html; charset=klingon-9", "utf-8", "café"),
        ("<p>café</p>".encode("latin-1"), "text/html; charset=utf-8", "utf-8", "caf�"),
        (b"<p>x</p>", "text/html; charset=rot13", "utf-8", "x"),
    ],
)
def test_the_charset_is_found_and_a_wrong_one_never_raises(body: bytes, kind: str, encoding: str, text: str) -> None:
    page = make_page(body, kind=kind)
    assert (page.encoding, page.text("p")) == (encoding, text)
    assert text in page.content


def test_bytes_that_are_no_utf8_are_replaced_everywhere() -> None:
    body = b"<title>\xff\xfe caf\xe9</title><p title='\xff\xed\xa0\x80'>a\xc3(b</p><a href='/\xff'>x</a>"
    page = make_page(body, kind="text/html; charset=utf-8")
    assert page.text("title") == "�� caf�"
    assert page.text("p") == "a�(b"
    assert page.attr("p", "title").startswith("�")
    assert page.css("p")[0].html
    assert page.links() == ["https://a.test/%EF%BF%BD"]
    page.text().encode()


@pytest.mark.parametrize("kind", ["text/html", "text/html; charset=utf-8", "application/octet-stream", ""])
@pytest.mark.parametrize(
    "body", [b"", b"\x00", bytes(range(256)) * 20, b"\xff\xfe\x00\xd8", gzip.compress(b"x" * 1000, mtime=0), b"<" * 500]
)
def test_no_body_makes_a_page_raise(body: bytes, kind: str) -> None:
    page = make_page(body, kind=kind)
    page.text().encode()
    page.content.encode()
    assert page.css("a") == page.links() == []
    assert isinstance(page.is_html, bool)
    assert page.base == page.url


def test_a_page_knows_its_response_and_task() -> None:
    page = make_page("text", kind="Text/Plain; charset=utf-8", meta={"a": 1}, depth=2)
    assert (page.url, page.status, page.depth, page.meta) == ("https://a.test/dir/page", 200, 2, {"a": 1})
    assert (page.content_type, page.is_html, page.text()) == ("text/plain", False, "text")
    assert page.body == b"text"
    assert page.headers["content-type"].startswith("Text/Plain")
    page.meta["a"] = 2
    assert page.task.meta == {"a": 1}
    assert repr(page) == "<Page 200 https://a.test/dir/page>"
    assert isinstance(make_page("<p>").css("p")[0], Element)
    assert make_page("<p>", kind="").is_html


HARD = {
    "deep blocks": b"<div>" * 50_000,
    "deep templates": b"<template>" * 50_000,
    "deep tables": b"<table><tr><td>" * 20_000,
    "deep inline": b"<b>" * 100_000,
    "blocks that end nothing": b"<div><table><td></div></td></table>" * 20_000,
    "formatting left open": b"".join(b"<font a=%d><p>" % number for number in range(4_000)),
    "little formatting left open": b"".join(b"<b a=%d><p>" % number for number in range(1_100)),
    "one tag of many attributes": b"<div " + b" ".join(b"a%d" % number for number in range(100_000)) + b">",
    "many tags of many attributes": (b"<p " + b" ".join(b"a%d" % number for number in range(400)) + b">") * 4_000,
    "shallow, but long at it": b"<div>" * 900 + b"<p>x" * 400_000,
    "a great many tags": b"<i>a</i>" * 600_000,
}


@pytest.mark.parametrize("name", HARD)
def test_markup_made_to_choke_on_is_refused_in_a_moment(name: str) -> None:
    began = time.process_time()
    with pytest.raises(UnfitMarkup):
        make_page(HARD[name]).text("h1")
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize(
    "body",
    [
        b"<div>" * 990 + b"x" + b"</div>" * 990,
        b"<ul>" + b"<li>a<li>b" * 20_000 + b"</ul>",
        b"<p>one<p>two" * 20_000,
        b"<table>" + b"<tr><td><font color=red>a<td><b>b" * 10_000 + b"</table>",
        b"<dl>" + b"<dt>a<dd>b" * 20_000,
        b"<select>" + b"<option>a" * 200_000,
        b"<p><b>never closed" * 20_000,
        b"<a href=x>never closed" * 20_000,
        b"<script>" + b"if (a<b) x='<div>';" * 20_000 + b"</script>",
        b"<!--" + b"<div>" * 20_000 + b"--><p>x",
        b"<br><img src=x><hr>" * 20_000,
        b"<div class='a b' data-x=\"1 > 2\">x</div>" * 20_000,
        b"<p>" + b"word " * 100_000,
        b"<img src='data:," + b"A" * 400_000 + b"'>",
    ],
)
def test_large_pages_of_the_usual_kinds_are_parsed(body: bytes) -> None:
    check_markup(body, MarkupLimits(nesting=DEEPEST))
    make_page(body).css("h9")


def test_what_editors_complete_is_typed() -> None:
    assert (Path(make_page.__code__.co_filename).parents[1] / "py.typed").exists()


def test_the_reason_for_being_turned_away_is_one_line_of_its_page() -> None:
    page = make_page("<h1>Are\nyou a robot?</h1>" + "<p>no</p>" * 10_000)
    with pytest.raises(TurnedAway, match=r"^blocked: Are you a robot\?$"):
        page.blocked(page.css("h1")[0].node.text())
    with pytest.raises(TurnedAway) as raised:
        page.blocked(page.text())
    assert len(str(raised.value)) < 600


def test_a_base_counts_in_utf16_too() -> None:
    for encoding in ("utf-16-le", "utf-16-be"):
        body = "\ufeff<base href='https://b.test/x/'><a href=y>".encode(encoding)
        assert make_page(body, kind="text/html").links() == ["https://b.test/x/y"]
