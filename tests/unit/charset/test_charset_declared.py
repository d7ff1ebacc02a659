"""The charset that a document declares: the prescan of the HTML Standard, and what a parser meets later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.urls.charset import PRESCANNED, charset_of, declared_in_head, declared_later, text_of

FAR = b"<link rel=stylesheet href=/a.css>\n" * 60
RUSSIAN = "привет".encode("koi8-r")


@pytest.mark.parametrize(
    ("head", "charset"),
    [
        (b"<meta charset=koi8-r>", "koi8-r"),
        (b"<!doctype html><html><head><MetA\n/CHARSET = 'koi8-r' />", "koi8-r"),
        (b'<meta charset=" koi8-r ">', "koi8-r"),
        (b"<meta name=x charset=koi8-r charset=utf-8>", "koi8-r"),
        (b'<meta http-equiv=Content-Type content="text/html; charset=koi8-r">', "koi8-r"),
        (b"<meta content='text/html;charset = \"koi8-r\"' http-equiv=content-type>", "koi8-r"),
        (b'<meta http-equiv=content-type content="charset charset=koi8-r;x">', "koi8-r"),
        # Not a declaration.
        (b'<meta name=description content="text/html; charset=koi8-r">', None),
        (b'<meta http-equiv=refresh content="text/html; charset=koi8-r">', None),
        (b"<metadata charset=koi8-r>", None),
        (b"<a charset=koi8-r>", None),
        (b"meta charset=koi8-r>", None),
        # Comments and other markup are skipped.
        (b"<!-- <meta charset=utf-8> --><meta charset=koi8-r>", "koi8-r"),
        (b"<!--><meta charset=koi8-r>-->", "koi8-r"),
        (b"<!--->--><meta charset=koi8-r>", "koi8-r"),
        (b"<!-- <meta charset=koi8-r>", None),
        (b"<!x <meta charset=utf-8><meta charset=koi8-r>", "koi8-r"),
        (b"<?php '<meta charset=utf-8' ?><meta charset=koi8-r>", "koi8-r"),
        (b"</ <meta charset=utf-8><meta charset=koi8-r>", "koi8-r"),
        # So are the values of attributes.
        (b'<body title="<meta charset=utf-8>"><meta charset=koi8-r>', "koi8-r"),
        (b"<body title=<meta/charset=utf-8><meta charset=koi8-r>", "koi8-r"),
        (b'<meta name="charset=utf-8" charset=koi8-r>', "koi8-r"),
        (b'</p x=">" <meta charset=utf-8><meta charset=koi8-r>', "koi8-r"),
        (b'<body title="unclosed><meta charset=koi8-r>', None),
        # A bogus label does not hide a good one.
        (b"<meta charset=klingon><meta charset=koi8-r>", "koi8-r"),
        (b'<meta charset><meta charset=""><meta charset=koi8-r>', "koi8-r"),
        (b'<meta charset=klingon http-equiv=content-type content="text/html; charset=koi8-r">', "koi8-r"),
        (b"<?xml version='1.0' encoding='klingon'?><meta charset=koi8-r>", "koi8-r"),
        # What was readable as ASCII is not UTF-16.
        (b"<meta charset=utf-16le>", "utf-8"),
        (b'<?xml version="1.0" encoding="UTF-16"?>', "utf-8"),
        (b"<meta charset=x-user-defined>", "windows-1252"),
        # XML declarations come after <meta>; one in UTF-16 is known by its bytes.
        (b'<?xml version="1.0" encoding="ISO-8859-15"?>', "iso-8859-15"),
        (b"\n<?xml version='1.0' encoding = 'koi8-r'?><html>", "koi8-r"),
        (b'<?xml version="1.0" encoding="koi8-r"?><meta charset=utf-8>', "utf-8"),
        (b'<?xml version="1.0"?><a encoding="koi8-r">', None),
        ("<?xml version='1.0'?>".encode("utf-16-le"), "utf-16le"),
        ("<?xml version='1.0'?>".encode("utf-16-be"), "utf-16be"),
    ],
)
def test_the_first_bytes_are_read_as_the_html_standard_says(head: bytes, charset: str | None) -> None:
    assert declared_in_head(head) == charset


def test_a_declaration_that_the_first_bytes_cut_off_is_found_later() -> None:
    body = b" " * (PRESCANNED - 10) + b"<meta charset=koi8-r>" + RUSSIAN
    assert declared_in_head(body) is None
    assert charset_of(body, "text/html") == "koi8-r"


@pytest.mark.parametrize(
    "meta",
    [b"<meta charset=koi8-r>", b"<META HTTP-EQUIV='Content-Type' CONTENT='text/html; CHARSET=koi8-r'>"],
)
def test_beyond_the_first_bytes_a_declaration_still_counts(meta: bytes) -> None:
    body = b"<html><head>" + FAR + meta + b"<title>" + RUSSIAN + b"</title>"
    assert charset_of(body, "text/html") == "koi8-r"
    assert "привет" in text_of(body, charset_of(body, None))
    # Although every byte of it is ASCII: its queries are in that charset, and ISO-2022-JP is nothing but ASCII.
    assert charset_of(b"<html>" + FAR + b"<meta charset=iso-2022-jp>", "text/html") == "iso-2022-jp"


@pytest.mark.parametrize(
    "before",
    [
        b"<!-- %s -->",
        b"<script>document.write('%s')</script>",
        b"<STYLE>%s</STYLE >",
        b"<title>%s</title>",
        b"<textarea>%s</textarea>",
        b'<iframe srcdoc="%s"></iframe>',
        b"<iframe>%s</iframe>",
        b"<!doctype %s",
    ],
)
def test_later_a_declaration_counts_only_where_a_parser_sees_a_tag(before: bytes) -> None:
    hidden = FAR + before % b"<meta charset=koi8-u>"
    assert charset_of(hidden + RUSSIAN, "text/html") == "windows-1252"
    assert charset_of(hidden + b"<meta charset=klingon><meta charset=koi8-r>" + RUSSIAN, "text/html") == "koi8-r"


def test_the_header_and_the_first_bytes_win_over_what_comes_later() -> None:
    later = FAR + b"<meta charset=koi8-r>" + RUSSIAN
    assert charset_of(later, "text/html; charset=windows-1251") == "windows-1251"
    assert charset_of(b"<meta charset=windows-1251>" + later, "text/html") == "windows-1251"
    assert charset_of(b"\xef\xbb\xbf" + later, "text/html; charset=windows-1251") == "utf-8"


@pytest.mark.parametrize(
    "filling",
    [
        b"<meta a='",
        b'<meta charset="',
        b"<!--",
        b"<!--<meta charset=gbk>",
        b"<script><meta charset=gbk>",
        b"<a b='<meta charset=gbk ",
        b'<a b="<meta charset=gbk>" ',
        b"<p>",
    ],
)
def test_a_hostile_page_is_searched_in_a_moment(filling: bytes) -> None:
    """With a cost that grows by the square of the size, this would take an hour."""
    body = FAR + filling * (20_000_000 // len(filling)) + b"<meta charset=gbk>\xff"
    assert charset_of(body, "text/html") in ("windows-1252", "gbk")


@given(
    body=st.lists(st.sampled_from([b"<", b"meta", b" charset=", b"gbk", b'"', b"'", b">", b"/", b"<!--", b"-->", b"="]))
)
def test_any_markup_can_be_searched(body: list[bytes]) -> None:
    assert declared_in_head(b"".join(body)) in (None, "gbk")
    assert declared_later(b"".join(body), fallback="utf-8") in (None, "gbk")
