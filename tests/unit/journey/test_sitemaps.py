from __future__ import annotations

import gzip
import random
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.journey.sitemaps import Sitemap, parse_sitemap, sitemaps_in_robots

URL = "https://example.com/sitemap.xml"
HEAD = b'<?xml version="1.0" encoding="UTF-8"?>\n'
NAMESPACE = b'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'


def urlset(*locs: str) -> bytes:
    entries = "".join(f"<url><loc>{loc}</loc><lastmod>2026-05-12</lastmod></url>" for loc in locs)
    return HEAD + b"<urlset " + NAMESPACE + b">" + entries.encode() + b"</urlset>\n"


def read(body: bytes, max_urls: int = 50_000) -> Sitemap:
    return parse_sitemap(body, url=URL, max_urls=max_urls)


def test_reads_the_pages_of_a_urlset_in_order_and_once() -> None:
    found = read(urlset("https://example.com/b", "https://example.com/a?x=1&amp;y=2", "https://example.com/b"))
    assert found == Sitemap(pages=["https://example.com/b", "https://example.com/a?x=1&y=2"])


def test_reads_the_sitemaps_of_an_index() -> None:
    body = HEAD + b"<sitemapindex " + NAMESPACE + b"><sitemap><loc>\n https://example.com/1.xml.gz\n</loc></sitemap>"
    body += b"<sitemap><loc><![CDATA[https://example.com/2.xml?a=1&b=2]]></loc></sitemap></sitemapindex>"
    assert read(body) == Sitemap(sitemaps=["https://example.com/1.xml.gz", "https://example.com/2.xml?a=1&b=2"])


@pytest.mark.parametrize(
    "body",
    [
        b"<urlset><url><loc>https://example.com/a</loc></url></urlset>",
        b'<sm:urlset xmlns:sm="urn:x"><sm:url><sm:loc>https://example.com/a</sm:loc></sm:url></sm:urlset>',
        b"<undeclared:urlset><url><loc>https://example.com/a</loc></url></undeclared:urlset>",
        b"<URLSET><Url><LOC>https://example.com/a</LOC></Url></URLSET>",
        b"\n\n  " + urlset("https://example.com/a"),
        b"\xef\xbb\xbf" + urlset("https://example.com/a"),
        '<?xml version="1.0" encoding="UTF-16"?><urlset><url><loc>https://example.com/a</loc></url></urlset>'.encode(
            "utf-16"
        ),
        b'<?xml version="1.0" encoding="windows-1251"?><urlset><url><loc>https://example.com/a</loc></url></urlset>',
        gzip.compress(urlset("https://example.com/a"), mtime=0),
        gzip.compress(urlset("https://example.com/a")[:60], mtime=0)
        + gzip.compress(urlset("https://example.com/a")[60:], mtime=0),
        gzip.compress(urlset("https://example.com/a"), mtime=0) + b"\0" * 512,
        gzip.compress(b"https://example.com/a\n", mtime=0),
        b"\xef\xbb\xbfhttps://example.com/a\r\n\r\nnot a URL\r\n",
        "https://example.com/a\n".encode("utf-16"),
    ],
)
def test_reads_every_form_that_sitemaps_come_in(body: bytes) -> None:
    assert read(body) == Sitemap(pages=["https://example.com/a"])


def test_only_the_page_itself_counts_not_its_images() -> None:
    body = urlset("https://example.com/a").replace(
        b"</loc>", b"</loc><image:image><image:loc>https://cdn.example/i.png</image:loc></image:image>"
    )
    assert read(body).pages == ["https://example.com/a"]


def test_mends_bare_ampersands_without_expanding_anything() -> None:
    found = read(urlset("https://example.com/?a=1&b=2", "https://example.com/?a=1&amp;b=&nbsp;&#65;"))
    assert found == Sitemap(pages=["https://example.com/?a=1&b=2", "https://example.com/?a=1&b=&nbsp;A"])


def test_broken_xml_gives_what_was_readable_and_the_problem() -> None:
    whole = urlset("https://example.com/a", "https://example.com/b", "https://example.com/c")
    found = read(whole[: whole.index(b"/c<") + 1])
    assert found.pages == ["https://example.com/a", "https://example.com/b"]
    assert found.problem.startswith(f"sitemap {URL}: its XML is broken: no element found: line 2")


def test_a_cut_gzip_gives_what_was_readable_and_the_problem() -> None:
    whole = gzip.compress(urlset(*(f"https://example.com/{number * 7919}" for number in range(20_000))))
    found = read(whole[: len(whole) // 2])
    assert 5_000 < len(found.pages) < 15_000
    assert found.problem == f"sitemap {URL}: its gzip data ends too early"
    garbled = read(whole[: len(whole) // 2] + random.Random(7).randbytes(len(whole)))
    assert 5_000 < len(garbled.pages) < 15_000
    assert "its gzip data is broken" in garbled.problem


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"\x89PNG\r\n\x1a\n\0\0", "it is neither XML nor a list of URLs"),
        (b"User-agent: *\nDisallow: /", "it is neither XML nor a list of URLs"),
        (b"<!DOCTYPE html><html><body>Not found", "it is an HTML page"),
        (b"<html></html>", "its root is <html>, not <urlset> or <sitemapindex>"),
        (b"<loc>https://example.com/a</loc>", "its root is <loc>, not <urlset> or <sitemapindex>"),
        (b'<?xml version="1.0" encoding="no-such"?><urlset/>', "its encoding is not known: unknown encoding: no-such"),
        (b"<", "its XML is broken"),
        (b"\x1f\x8b", "its gzip data ends too early"),
        (b"\x1f\x8bnot gzip at all", "its gzip data is broken"),
    ],
)
def test_what_is_no_sitemap_is_said_in_a_line(body: bytes, problem: str) -> None:
    found = read(body)
    assert (found.pages, found.sitemaps) == ([], [])
    assert found.problem.startswith(f"sitemap {URL}: {problem}")
    assert "\n" not in found.problem


@pytest.mark.parametrize(
    "declaration",
    [
        b'<!DOCTYPE urlset [<!ENTITY x SYSTEM "file:///etc/passwd">]>',
        b'<!DOCTYPE urlset [<!ENTITY a "aaaa"><!ENTITY x "&a;&a;&a;&a;">]>',
        b'<!DOCTYPE urlset SYSTEM "http://evil.example/x.dtd">',
        b"<!DOCTYPE urlset>",
    ],
)
def test_a_document_type_is_refused_and_no_entity_expanded(declaration: bytes) -> None:
    found = read(declaration + b"<urlset><url><loc>https://example.com/&x;</loc></url></urlset>")
    assert found.pages == []
    assert found.problem == f"sitemap {URL}: it has a document type declaration, which no sitemap needs"


def test_takes_no_more_urls_than_asked_for() -> None:
    locs = [f"https://example.com/{number}" for number in range(12)]
    for body in (urlset(*locs), "\n".join(locs).encode()):
        found = read(body, max_urls=10)
        assert found.pages == locs[:10]
        assert found.problem == f"sitemap {URL}: it lists more than 10 URLs; the rest is left out"
        assert read(body, max_urls=12).problem == ""


def test_leaves_out_a_url_of_absurd_length() -> None:
    assert read(urlset("https://example.com/" + "x" * 100_000, "https://example.com/a")).pages == [
        "https://example.com/a"
    ]


@pytest.mark.parametrize("filling", [b"\0", b" ", b"<a>", b"https://example.com/\n"])
def test_a_gzip_bomb_costs_bounded_time_and_memory(filling: bytes) -> None:
    layer = gzip.compress(b"<urlset>" + filling * (200_000_000 // len(filling)), compresslevel=1)
    started = time.process_time()
    tracemalloc.start()
    try:
        found = read(layer)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.pages == []
    assert "the rest is left out" in found.problem
    assert peak < 250_000_000
    assert time.process_time() - started < 10


def test_many_small_gzip_members_cost_bounded_time() -> None:
    started = time.process_time()
    found = read(gzip.compress(b"") * 100_000 + gzip.compress(urlset("https://example.com/a")))
    assert found.pages == ["https://example.com/a"]
    assert time.process_time() - started < 10


def test_elements_nested_without_end_are_given_up() -> None:
    found = read(b"<urlset><url><loc>https://example.com/a</loc></url>" + b"<a>" * 1_000_000)
    assert found.pages == ["https://example.com/a"]
    assert "more elements, or deeper ones" in found.problem


@settings(deadline=None)
@given(st.binary() | st.text().map(str.encode) | st.binary().map(gzip.compress))
def test_no_body_makes_it_raise(body: bytes) -> None:
    for variant in (body, urlset("https://example.com/a")[:-20] + body):
        assert isinstance(read(variant), Sitemap)


def test_finds_the_sitemap_lines_of_a_robots_txt() -> None:
    text = (
        "\ufeffSitemap: https://example.com/a.xml\r\nUser-agent: *\nDisallow: /sitemap: x\n"
        "  SITEMAP :https://example.com/b.xml # the other one\nSitemap:\nSitemap: https://example.com/a.xml\n"
        "# Sitemap: https://example.com/c.xml\nsitemap: /relative.xml\n"
    )
    assert sitemaps_in_robots(text) == ["https://example.com/a.xml", "https://example.com/b.xml", "/relative.xml"]
    assert sitemaps_in_robots("") == []
