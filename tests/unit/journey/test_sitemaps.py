from __future__ import annotations

import gzip
import random
import time
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.journey.sitemaps import Sitemap, modified_at, parse_sitemap, sitemaps_in_robots

URL = "https://example.com/sitemap.xml"
HEAD = b'<?xml version="1.0" encoding="UTF-8"?>\n'
NAMESPACE = b'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'


def without_times(sitemap: Sitemap) -> Sitemap:
    return msgspec.structs.replace(sitemap, modified={})


def urlset(*locs: str) -> bytes:
    entries = "".join(f"<url><loc>{loc}</loc><lastmod>2026-05-12</lastmod></url>" for loc in locs)
    return HEAD + b"<urlset " + NAMESPACE + b">" + entries.encode() + b"</urlset>\n"


def read(body: bytes, max_urls: int = 50_000) -> Sitemap:
    return parse_sitemap(body, url=URL, max_urls=max_urls)


def test_reads_the_pages_of_a_urlset_in_order_and_once() -> None:
    found = read(urlset("https://example.com/b", "https://example.com/a?x=1&amp;y=2", "https://example.com/b"))
    assert without_times(found) == Sitemap(pages=["https://example.com/b", "https://example.com/a?x=1&y=2"])


def test_reads_the_sitemaps_of_an_index() -> None:
    body = HEAD + b"<sitemapindex " + NAMESPACE + b"><sitemap><loc>\n https://example.com/1.xml.gz\n</loc></sitemap>"
    body += b"<sitemap><loc><![CDATA[https://example.com/2.xml?a=1&b=2]]></loc></sitemap></sitemapindex>"
    assert without_times(read(body)) == Sitemap(
        sitemaps=["https://example.com/1.xml.gz", "https://example.com/2.xml?a=1&b=2"]
    )


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
        b"\xef\xbb\xbfhttps://example.com/a\r\n\r\n# not a URL\r\n",
        b"\xef\xbb\xbf\r\n\n" + urlset("https://example.com/a"),
        b"\n\xef\xbb\xbf" + urlset("https://example.com/a"),
        '<?xml version="1.0"?><urlset><url><loc>https://example.com/a</loc></url></urlset>'.encode("utf-16-le"),
        '<?xml version="1.0"?><urlset><url><loc>https://example.com/a</loc></url></urlset>'.encode("utf-16-be"),
        # Declared as UTF-16 and readable as ASCII: it is not UTF-16.
        b'<?xml version="1.0" encoding="UTF-16"?><urlset><url><loc>https://example.com/a</loc></url></urlset>',
        "https://example.com/a\n".encode("utf-16"),
    ],
)
def test_reads_every_form_that_sitemaps_come_in(body: bytes) -> None:
    assert without_times(read(body)) == Sitemap(pages=["https://example.com/a"])


def test_only_the_page_itself_counts_not_its_images() -> None:
    body = urlset("https://example.com/a").replace(
        b"</loc>", b"</loc><image:image><image:loc>https://cdn.example/i.png</image:loc></image:image>"
    )
    assert read(body).pages == ["https://example.com/a"]


def test_mends_bare_ampersands_without_expanding_anything() -> None:
    found = read(urlset("https://example.com/?a=1&b=2", "https://example.com/?a=1&amp;b=&nbsp;&#65;"))
    assert without_times(found) == Sitemap(pages=["https://example.com/?a=1&b=2", "https://example.com/?a=1&b=&nbsp;A"])


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
        (b"<!doctype html><html lang=en><body>Not found", "it is an HTML page"),
        (b"<!-- x -->\n<!doctype html><p>", "it is an HTML page"),
        (b"<html></html>", "it is an HTML page"),
        (b"<HEAD><title>Not found</title>", "it is an HTML page"),
        (b"<!-- x --><!DOCTYPE HTML><p>https://example.com/a", "it is an HTML page"),
        (b"<loc>https://example.com/a</loc>", "its root is <loc>, not that of a sitemap or a feed"),
        (b'<?xml version="1.0" encoding="no-such"?><urlset/>', "its encoding is not known: 'no-such'"),
        (b'{"sitemap": "https://example.com/a"}', "it is neither XML nor a list of URLs"),
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
        b'<!DOCTYPE rss [<!ENTITY x "a">]>',
        b'<!DOCTYPE rss SYSTEM "rss.dtd" [<!ENTITY x SYSTEM "file:///etc/passwd">]>',
    ],
)
def test_a_document_type_is_refused_and_no_entity_expanded(declaration: bytes) -> None:
    found = read(declaration + b"<urlset><url><loc>https://example.com/&x;</loc></url></urlset>")
    assert found.pages == []
    assert found.problem == f"sitemap {URL}: it has a document type declaration, which no sitemap needs"


@pytest.mark.parametrize(
    ("encoding", "label", "path"),
    [
        ("gb18030", "gb2312", "中文"),
        ("cp932", "Shift_JIS", "日本"),
        ("euc-jp", "EUC-JP", "日本"),
        ("big5", "big5", "中文"),
        ("cp1251", "windows-1251", "путь"),
        ("latin-1", "ISO-8859-1", "café"),
        ("utf-16", "UTF-16", "路"),
    ],
)
def test_reads_every_charset_of_the_web(encoding: str, label: str, path: str) -> None:
    body = f'<?xml version="1.0" encoding="{label}"?><urlset><url><loc>https://example.com/{path}</loc></url></urlset>'
    for variant in (body, "\n" + body) if encoding != "utf-16" else (body,):
        assert read(variant.encode(encoding)) == Sitemap(pages=[f"https://example.com/{path}"])
    unknown = read(body.replace(label, "klingon-9").encode())
    assert unknown.pages == [f"https://example.com/{path}"]
    assert unknown.problem == f"sitemap {URL}: its encoding is not known: 'klingon-9'"
    assert not unknown.is_whole


@pytest.mark.parametrize("bad", [b"\xe9", b"\xff", b"\xc3(", b"\0", b"\x0b", b"\x1b[0m", b"\xef\xbf\xbf"])
def test_around_a_bad_byte_everything_is_read(bad: bytes) -> None:
    body = urlset("https://example.com/1", "https://example.com/2", "https://example.com/ö", "https://example.com/4")
    elsewhere = read(body.replace(b"2026-05-12", bad, 1))
    assert elsewhere.pages == [f"https://example.com/{name}" for name in "12ö4"]
    assert (elsewhere.is_whole, elsewhere.skipped) == (False, 0)
    within = read(body.replace(b".com/2", b".com/" + bad))
    assert within.pages == [f"https://example.com/{name}" for name in "1ö4"]
    assert (within.is_whole, within.skipped) == (False, 1)
    assert within.problem.endswith("1 entry names no usable URL: <url> number 2")


@pytest.mark.parametrize("bad", [b"\xe9", b"\xff", b"\xc3("])
def test_around_a_bad_byte_of_a_list_every_line_is_read(bad: bytes) -> None:
    found = read("https://example.com/ö\nhttps://example.com/X\nhttps://example.com/3".encode().replace(b"X", bad))
    assert found.pages == ["https://example.com/ö", "https://example.com/3"]
    assert (found.is_whole, found.skipped) == (False, 1)
    assert "some of its bytes mean nothing in its charset, utf-8" in found.problem


@pytest.mark.parametrize(
    ("body", "pages", "sitemaps", "skipped"),
    [
        (b"<sitemapindex><sitemap/><sitemap><loc>/2.xml</loc></sitemap></sitemapindex>", [], ["/2.xml"], 1),
        (b"<sitemapindex><sitemap><lastmod>x</lastmod></sitemap></sitemapindex>", [], [], 1),
        (b"<urlset><url><lastmod/></url>\n<url><loc> </loc></url><url><loc>/a</loc></url></urlset>", ["/a"], [], 2),
        (b"<urlset><url><image><loc>/i</loc></image></url></urlset>", [], [], 1),
        (b"<urlset><url><loc>/a</loc><x:url>not an entry</x:url></url></urlset>", ["/a"], [], 0),
        (
            b"https://example.com/a\nnonsense\n\n# comment\n/relative\nhttp://b.test/\n",
            ["https://example.com/a", "http://b.test/"],
            [],
            2,
        ),
        ("\ufeffhttps://example.com/a\r\nno URL\r\n".encode("utf-16-be"), ["https://example.com/a"], [], 1),
    ],
)
def test_entries_without_a_url_are_counted_and_the_others_kept(
    body: bytes, pages: list[str], sitemaps: list[str], skipped: int
) -> None:
    found = read(body)
    assert (found.pages, found.sitemaps, found.skipped, found.is_whole) == (pages, sitemaps, skipped, True)
    assert ("no usable URL" in found.problem) == (skipped > 0)


def test_the_first_entry_without_a_url_is_named() -> None:
    entries = b"<url><loc>/a</loc></url>\n<url/>\n<url></url>"
    assert read(b"<urlset>\n" + entries + b"</urlset>").problem == (
        f"sitemap {URL}: 2 entries name no usable URL, the first is <url> number 2"
    )
    assert read(b"https://a.test/\nfoo\x1b\n").problem == (
        f"sitemap {URL}: 1 entry names no usable URL: the line 'foo\\x1b'"
    )


RSS = b"""<rss version="2.0" xmlns:atom="http://www.w3.org/2005/Atom"><channel><title>News</title>
<link>https://example.com/</link><atom:link href="https://example.com/feed" rel="self"/>
<image><link>/logo</link></image>
<item><title>1</title><link>https://example.com/1?a=1&amp;b=2</link><guid isPermaLink="false">17</guid></item>
<item><link><![CDATA[ https://example.com/2 ]]></link><guid>https://example.com/?p=2</guid></item>
<item><title>3</title><guid>https://example.com/3</guid></item>
<item><guid isPermaLink="true">https://example.com/4</guid><atom:link href="/x"/><link/></item>
<item><guid isPermaLink="false">https://example.com/no</guid></item>
<item><guid>tag:example.com,2026:6</guid></item>
</channel></rss>"""
ATOM = b"""<?xml version="1.0"?><feed xmlns="http://www.w3.org/2005/Atom"><link href="https://example.com/"/>
<link rel="self" href="/feed"/><entry><id>urn:1</id><link href="https://example.com/1"/></entry>
<entry><link rel="edit" href="/edit"/><link rel="alternate" type="text/html" href="/2"/>
<link rel="enclosure" href="/mp3"/></entry>
<entry><content><div><link href="/no"/></div></content><link rel="replies" href="/no"/></entry></feed>"""
RDF = b"""<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/">
<channel rdf:about="https://example.com/"><link>https://example.com/</link></channel>
<item rdf:about="https://example.com/1"><title>1</title><link>https://example.com/1</link></item><item/></rdf:RDF>"""


def test_reads_the_pages_of_an_rss_feed() -> None:
    found = read(RSS)
    assert found.pages == [
        "https://example.com/1?a=1&b=2",
        "https://example.com/2",
        "https://example.com/3",
        "https://example.com/4",
    ]
    assert (found.sitemaps, found.skipped, found.is_whole) == ([], 2, True)


def test_reads_the_pages_of_an_atom_feed() -> None:
    found = read(ATOM)
    assert (found.pages, found.sitemaps, found.skipped) == (["https://example.com/1", "/2"], [], 1)


def test_reads_the_pages_of_an_rdf_feed() -> None:
    found = read(RDF)
    assert (found.pages, found.sitemaps, found.skipped) == (["https://example.com/1"], [], 1)


def test_the_document_type_of_an_old_feed_is_neither_fetched_nor_expanded() -> None:
    doctype = b'<!DOCTYPE rss PUBLIC "-//Netscape Communications//DTD RSS 0.91//EN" "http://evil.example/rss.dtd">'
    item = b"<item><link>https://example.com/?a=1&eacute;&amp;b</link></item>"
    found = read(b"<?xml version='1.0'?>" + doctype + b"<rss><channel>" + item + b"</channel></rss>")
    assert without_times(found) == Sitemap(pages=["https://example.com/?a=1&eacute;&b"])


def test_a_feed_that_ends_early_gives_what_was_readable_and_the_problem() -> None:
    for feed, pages in ((RSS, 2), (ATOM, 1)):
        found = read(feed[: feed.index(b">3<" if feed is RSS else b'rel="edit"')])
        assert (len(found.pages), found.is_whole) == (pages, False)
        assert "its XML is broken" in found.problem


def test_words_before_the_xml_are_left_out_and_said() -> None:
    found = read(b"Warning: mysql_connect() in /x.php on line 3\n" + urlset("https://example.com/a"))
    assert (found.pages, found.problem) == (["https://example.com/a"], f"sitemap {URL}: there is text before its XML")


def test_takes_no_more_urls_than_asked_for() -> None:
    locs = [f"https://example.com/{number}" for number in range(12)]
    for body in (urlset(*locs), "\n".join(locs).encode()):
        found = read(body, max_urls=10)
        assert found.pages == locs[:10]
        assert found.problem == f"sitemap {URL}: it lists more than 10 URLs; the rest is left out"
        assert read(body, max_urls=12).problem == ""


def test_leaves_out_a_url_of_absurd_length_and_counts_it() -> None:
    long, short = "https://example.com/" + "x" * 100_000, "https://example.com/a"
    for body in (urlset(long, short), f"{long}\n{short}\n".encode()):
        found = read(body)
        assert (found.pages, found.skipped, found.is_whole) == ([short], 1, True)


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


@given(st.binary() | st.text().map(str.encode) | st.binary().map(gzip.compress))
def test_no_body_makes_it_raise(body: bytes) -> None:
    for variant in (body, urlset("https://example.com/a")[:-20] + body, RSS[:300] + body, ATOM[:200] + body):
        assert isinstance(read(variant), Sitemap)


def test_finds_the_sitemap_lines_of_a_robots_txt() -> None:
    text = (
        "\ufeffSitemap: https://example.com/a.xml\r\nUser-agent: *\nDisallow: /sitemap: x\n"
        "  SITEMAP :https://example.com/b.xml # the other one\nSitemap:\nSitemap: https://example.com/a.xml\n"
        "# Sitemap: https://example.com/c.xml\nsitemap: /relative.xml\n"
    )
    assert sitemaps_in_robots(text) == ["https://example.com/a.xml", "https://example.com/b.xml", "/relative.xml"]
    assert sitemaps_in_robots("") == []


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"http://a.test/1\n" + b"x\n" * 500_000, "more than 500,000 lines"),
        (b"<urlset><url><loc>http://a.test/1</loc></url><url " + b"a" * 3_000_000, "a longer tag than any sitemap"),
        # Escaping all of them would take a hundred times their memory.
        (b"<urlset><url><loc>http://a.test/1</loc></url>" + b"&" * 600_000 + b"</urlset>", "its XML is broken"),
    ],
)
def test_a_file_made_to_fill_the_memory_is_read_in_part(body: bytes, problem: str) -> None:
    sitemap = parse_sitemap(body, url="u")
    assert sitemap.pages == ["http://a.test/1"]
    assert problem in sitemap.problem
    assert not sitemap.is_whole


def test_long_texts_are_no_long_tags() -> None:
    text = b"<description><![CDATA[" + b"x" * 5_000_000 + b"]]></description>"
    feed = b"<rss><channel><item>%s<link>http://a.test/1</link></item></channel></rss>" % text
    assert parse_sitemap(feed, url="u") == Sitemap(pages=["http://a.test/1"])


def test_the_times_of_change_are_kept_as_the_sitemap_says() -> None:
    body = (
        b"<urlset><url><lastmod> 2026-05-12 </lastmod><loc>https://a.test/1</loc></url>"
        b"<url><loc>https://a.test/2</loc></url>"
        b"<url><loc>https://a.test/3</loc><lastmod>2026-05-12T10:00:00+02:00</lastmod></url></urlset>"
    )
    found = parse_sitemap(body, url="https://a.test/s.xml")
    assert found.pages == ["https://a.test/1", "https://a.test/2", "https://a.test/3"]
    assert found.modified == {"https://a.test/1": "2026-05-12", "https://a.test/3": "2026-05-12T10:00:00+02:00"}


@pytest.mark.parametrize(
    ("text", "moments"),
    [
        ("2026-05-12T10:00:00+02:00", (1778572800.0,)),
        ("2026-05-12T08:00:00Z", (1778572800.0,)),
        ("2026-05-12", (1778544000.0, 1778630400.0)),
        ("yesterday", ()),
        ("", ()),
    ],
)
def test_a_time_of_change_is_an_iso_date_that_of_a_day_its_beginning_and_its_end(
    text: str, moments: tuple[float, ...]
) -> None:
    assert modified_at(text) == moments
