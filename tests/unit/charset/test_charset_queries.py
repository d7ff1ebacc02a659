from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest

from shoal.urls import queries
from shoal.urls.charset import LABELS, text_of
from shoal.urls.queries import with_query_in

IN_UTF8 = {"utf-8", "utf-16le", "utf-16be", "replacement"}
LEGACY = sorted(set(LABELS.values()) - IN_UTF8)
# Characters that the Standard writes as bytes that are read as another character.
ONE_WAY_IN_GB = {*map(chr, range(0xE78D, 0xE797)), *"\ue81e\ue826\ue82b\ue82c\ue832\ue843\ue854\ue864"}
ONE_WAY = {
    "euc-jp": set("\xa5\u203e\u2212"),
    "shift_jis": set("\xa5\u203e\u2212"),
    "iso-2022-jp": {"\u2212", *map(chr, range(0xFF61, 0xFFA0))},
    "gbk": ONE_WAY_IN_GB,
    "gb18030": ONE_WAY_IN_GB,
}


@pytest.mark.parametrize(
    ("charset", "query", "escaped"),
    [
        ("shift_jis", "q=日本&p=1", "q=%93%FA%96{&p=1"),
        ("shift_jis", "表 ｱ¥‾−\x80", "%95\\ %B1\\~%81|%80"),
        ("shift_jis", "纊", "%FA\\"),  # in two rows: the later one counts
        ("euc-jp", "日本ｱ①", "%C6%FC%CB%DC%8E%B1%AD%A1"),
        ("euc-jp", "丂", "%26%2319970%3B"),  # it could be read, but browsers do not write JIS X 0212
        ("iso-2022-jp", "a日b", "a%1B$BF|%1B(Bb"),
        ("iso-2022-jp", "¥a\\ｱﾞ☃", "%1B(J\\a%1B(B\\%1B$B%%22!+%1B(B%26%239731%3B"),
        ("gbk", "中€𠀀", "%D6%D0%80%26%23131072%3B"),
        ("gb18030", "中€𠀀\ue5e5\ue7c7", "%D6%D0%A2%E3%952%826%26%2358853%3B%815%F47"),
        ("big5", "中═十", "%A4%A4%F9%F9%A4Q"),
        ("big5", "䏰", "%26%2317392%3B"),  # Hong Kong's characters are read, not written
        ("euc-kr", "한국", "%C7%D1%B1%B9"),
        ("windows-1251", "кофе☕", "%EA%EE%F4%E5%26%239749%3B"),
        ("windows-1252", "café “x”", "caf%E9 %93x%94"),
        ("koi8-u", "ґ", "%AD"),
        ("x-user-defined", "\uf780é", "%80%26%23233%3B"),
        ("iso-8859-8-i", "שלום", "%F9%EC%E5%ED"),
        *((charset, "日本é", "日本é") for charset in sorted(IN_UTF8)),
    ],
)
def test_a_query_is_written_as_browsers_write_it(charset: str, query: str, escaped: str) -> None:
    assert with_query_in(f"/?{query}", charset) == f"/?{escaped}"


@pytest.mark.parametrize(
    ("href", "encoded"),
    [
        ("/日本", "/日本"),
        ("/日本?a=b", "/日本?a=b"),
        ("/日本?日#本", "/日本?%93%FA#本"),
        ("/a#日?日", "/a#日?日"),
        ("?日?日", "?%93%FA?%93%FA"),
        ("https://例え.test/日?日", "https://例え.test/日?%93%FA"),
        ("?日%E6%97%A5", "?%93%FA%E6%97%A5"),
        ("?a\n日\t", "?a%93%FA"),
    ],
)
def test_only_the_query_is_in_the_charset_of_the_page(href: str, encoded: str) -> None:
    assert with_query_in(href, "shift_jis") == encoded
    assert with_query_in(encoded, "shift_jis") == encoded


@pytest.mark.parametrize("charset", LEGACY)
def test_what_is_written_is_read_as_the_same(charset: str) -> None:
    for code in [*range(0x80, 0xD800), *range(0xE000, 0x10000), 0x20000, 0x1F600, 0x10FFFF]:
        character = chr(code)
        written = with_query_in("?" + character, charset)[1:]
        if written != f"%26%23{code}%3B" and character not in ONE_WAY.get(charset, ""):
            assert text_of(unquote_to_bytes(written), charset) == character


@pytest.mark.parametrize(
    "charset", [charset for charset in LEGACY if len(text_of(bytes(range(128, 256)), charset)) == 128]
)
def test_every_character_of_a_small_charset_is_written(charset: str) -> None:
    for byte, character in enumerate(text_of(bytes(range(256)), charset)):
        if byte >= 0x80 and character != "\ufffd":
            assert with_query_in("?" + character, charset) == f"?%{byte:02X}"


def test_pages_in_ever_other_charsets_make_no_table_twice() -> None:
    for charset in LEGACY:
        with_query_in("?é", charset)
    made = queries._bytes_by_character.cache_info().misses
    for charset in LEGACY:
        with_query_in("?é", charset)
    assert queries._bytes_by_character.cache_info().misses == made
