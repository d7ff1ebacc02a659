from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.urls.charset import charset_of, text_of


@pytest.mark.parametrize(
    ("body", "content_type", "charset"),
    [
        (b"\xef\xbb\xbfhello", "text/html; charset=latin1", "utf-8"),
        (b"\xff\xfeh\x00", None, "utf-16le"),
        (b"\xfe\xff\x00h", "text/html; charset=koi8-r", "utf-16be"),
        (b"<meta charset=koi8-r>", "text/html; charset=UTF-8", "utf-8"),
        (b"", 'text/html; charset="Shift_JIS"', "shift_jis"),
        (b"", "text/html;CHARSET = 'utf8' ; x=y", "utf-8"),
        (b"", "text/html; charset=ISO-8859-1", "windows-1252"),
        (b"", "text/html; charset=gb2312", "gbk"),
        (b"", "text/html; x-charset=koi8-r", "utf-8"),
        (b"<html><META CharSet=windows-1251>", None, "windows-1251"),
        (b'<meta http-equiv="Content-Type" content="text/html; charset=euc-kr">', "text/html", "euc-kr"),
        (b"<meta charset=klingon>", "text/html; charset=nonsense", "utf-8"),
        (b"<meta charset=koi8-r>", "text/html; charset=nonsense", "koi8-r"),
        ("café".encode(), "text/html", "utf-8"),
        ("café".encode("latin-1"), "text/html", "windows-1252"),
        ("café".encode("latin-1"), "text/html; charset=klingon-9", "windows-1252"),
        (b"", "text/html; charset=x-user-defined", "x-user-defined"),
    ],
)
def test_follows_the_order_of_the_web(body: bytes, content_type: str | None, charset: str) -> None:
    assert charset_of(body, content_type) == charset


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "text/csv", "", None])
def test_html_in_the_texts_of_other_documents_declares_nothing(kind: str | None) -> None:
    assert charset_of(b'{"page": "<meta charset=koi8-r>"}', kind) == "utf-8"
    assert charset_of(b'{"page": "' + b" " * 2000 + b'<meta charset=koi8-r>"}', kind) == "utf-8"


@pytest.mark.parametrize("kind", ["application/rss+xml", "text/xml", "application/xml"])
def test_xml_is_declared_in_its_first_line_alone(kind: str) -> None:
    texts = b"<rss><![CDATA[<p><meta charset=koi8-r>]]>" + b" " * 2000 + b"<![CDATA[<p><meta charset=koi8-r>]]></rss>"
    assert charset_of(texts, kind) == "utf-8"
    assert charset_of(b'<?xml version="1.0" encoding="gb2312"?>' + texts, kind) == "gbk"


@pytest.mark.parametrize(
    ("charset", "body", "text"),
    [
        # Characters that Python's codecs lack, or read as others.
        ("windows-1252", b"\x81\x93\x9d", "\x81\u201c\x9d"),
        ("windows-1255", b"\xca", "\u05ba"),
        ("koi8-u", b"\xae\xbe", "\u045e\u040e"),
        ("x-mac-cyrillic", b"\xa2\xb6\xff", "\u0490\u0491\u20ac"),
        ("macintosh", b"\xdb", "\u20ac"),
        ("windows-874", b"\x81\xa1", "\x81\u0e01"),
        ("iso-8859-8-i", b"\xe0", "\u05d0"),
        ("x-user-defined", b"a\x80\xff", "a\uf780\uf7ff"),
        ("gbk", b"\x80\xa2\xa1\xa3\xa0", "\u20ac\u2170\u3000"),
        ("gb18030", b"\x81\x35\xf4\x37\xa8\xbc\xa6\xd9", "\ue7c7\u1e3f\ufe10"),
        ("big5", b"\xa1\x45\xa1\x4e\x87\x40\x88\x62", "\u2027\ufe51\u43f0\xca\u0304"),
        ("shift_jis", b"\x81\x5c\x81\x60\x81\x7c\x80\xf0\x40", "\u2015\uff5e\uff0d\x80\ue000"),
        ("euc-jp", b"\xad\xa1\xa1\xc1\x8f\xa2\xb7\x8f\xb0\xa1\x8e\xb1", "\u2460\uff5e\uff5e\u4e02\uff71"),
        ("iso-2022-jp", b"\x1b$BF|K\\\x1b(I1\x1b(J\\\x1b(B.", "\u65e5\u672c\uff71\xa5."),
        ("euc-kr", b"\x81\x41\xb0\xa1", "\uac02\uac00"),
        ("utf-16be", b"\x00h\xd8\x00\x00i", "h\ufffdi"),
        ("replacement", b"~{VPND~}<script>", "\ufffd"),
    ],
)
def test_bytes_mean_what_the_encoding_standard_says(charset: str, body: bytes, text: str) -> None:
    assert text_of(body, charset) == text


@pytest.mark.parametrize(
    ("charset", "lead"),
    [
        ("shift_jis", b"\x81"),
        ("euc-jp", b"\xa4"),
        ("euc-jp", b"\x8f\xa4"),
        ("gbk", b"\x81"),
        ("gb18030", b"\x81\x30\x81"),
        ("big5", b"\xa4"),
        ("euc-kr", b"\xb0"),
        ("utf-8", b"\xe3\x81"),
    ],
)
def test_half_a_character_swallows_no_markup(charset: str, lead: bytes) -> None:
    assert text_of(lead + b'"><b>', charset).endswith('"><b>')
    assert "\ufffd" in text_of(lead + b'"><b>', charset)


def test_a_lie_about_the_charset_costs_only_the_characters() -> None:
    assert text_of("<p>café</p>".encode("latin-1"), "utf-8") == "<p>caf�</p>"


def test_drops_the_byte_order_mark() -> None:
    assert text_of(b"\xef\xbb\xbfhi", "utf-8") == "hi"
    assert text_of("\ufeffhi".encode("utf-16-le"), "utf-16le") == "hi"
    assert text_of("\ufeffhi".encode("utf-16-be"), "utf-16be") == "hi"


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
