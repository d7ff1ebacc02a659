from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.charset import charset_of, codec_of, text_of


@pytest.mark.parametrize(
    ("body", "content_type", "charset"),
    [
        (b"\xef\xbb\xbfhello", "text/html; charset=latin1", "utf-8"),
        (b"\xff\xfeh\x00", None, "utf-16-le"),
        (b"\xfe\xff\x00h", None, "utf-16-be"),
        (b"<meta charset=koi8-r>", "text/html; charset=UTF-8", "utf-8"),
        (b"", 'text/html; charset="Shift_JIS"', "cp932"),
        (b"", "text/html;CHARSET = 'utf8' ; x=y", "utf-8"),
        (b"", "text/html; charset=ISO-8859-1", "windows-1252"),
        (b"", "text/html; charset=gb2312", "gb18030"),
        (b"<html><META CharSet=windows-1251>", None, "cp1251"),
        (b'<meta http-equiv="Content-Type" content="text/html; charset=euc-kr">', "text/html", "cp949"),
        (b"<meta charset=utf-16le>", None, "utf-8"),
        (b'<?xml version="1.0" encoding="ISO-8859-15"?>', "text/xml", "iso8859-15"),
        (b" " * 2000 + b"<meta charset=koi8-r>", None, "utf-8"),
        (b"<meta charset=klingon>", "text/html; charset=nonsense", "utf-8"),
        ("café".encode(), "text/html", "utf-8"),
        ("café".encode("latin-1"), "text/html", "windows-1252"),
        ("café".encode("latin-1"), "text/html; charset=klingon-9", "windows-1252"),
    ],
)
def test_follows_the_order_of_the_web(body: bytes, content_type: str | None, charset: str) -> None:
    assert charset_of(body, content_type) == charset


@pytest.mark.parametrize(
    "label",
    ["rot13", "zlib", "hex", "base64", "utf-7", "idna", "punycode", "unicode_escape", "", "\x00", "é", "x" * 500],
)
def test_refuses_codecs_that_no_page_may_ask_for(label: str) -> None:
    assert codec_of(label) is None


def test_a_lie_about_the_charset_costs_only_the_characters() -> None:
    assert text_of("<p>café</p>".encode("latin-1"), "utf-8") == "<p>caf�</p>"


def test_drops_the_byte_order_mark() -> None:
    assert text_of(b"\xef\xbb\xbfhi", "utf-8") == "hi"
    assert text_of("\ufeffhi".encode("utf-16-le"), "utf-16-le") == "hi"


def test_an_unknown_charset_is_read_as_utf8() -> None:
    assert text_of("café".encode(), "klingon") == "café"


@given(body=st.binary(max_size=3000), content_type=st.none() | st.text(max_size=100))
def test_never_raises(body: bytes, content_type: str | None) -> None:
    assert isinstance(text_of(body, charset_of(body, content_type)), str)


@given(label=st.binary(min_size=1, max_size=60))
def test_never_raises_for_any_declared_label(label: bytes) -> None:
    body = b"<meta charset='" + label + b"'>caf\xe9"
    assert isinstance(text_of(body, charset_of(body, None)), str)
    header = f"text/html; charset={label.decode('latin-1')}"
    assert isinstance(text_of(body, charset_of(body, header)), str)
