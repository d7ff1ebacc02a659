"""Encodes the query of a link in the charset of its page, as browsers do: a Shift_JIS site expects ?q=%93%FA%96%7B.

Paths are always in UTF-8, and so are queries of pages in UTF-8 or UTF-16.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from urllib.parse import quote_from_bytes

from shoal.urls.charset import MULTI_BYTE, characters_of, text_of

_QUERIES_IN_UTF8: Final = frozenset({"utf-8", "utf-16le", "utf-16be", "replacement"})
# Characters that a query has unescaped: all of ASCII but controls, space, and " # ' < >
_SAFE: Final = "".join(chr(byte) for byte in range(0x21, 0x7F) if chr(byte) not in "\"#'<>")
_DROPPED: Final = dict.fromkeys(map(ord, "\t\n\r"))
_ROWS: Final = range(0x81, 0xFF)
_TRAILS: Final = [*range(0x40, 0x7F), *range(0x80, 0xFF)]
_HALF_WIDTH: Final = range(0xFF61, 0xFFA0)
# Characters that these encodings write but never read.
_JAPANESE: Final = {"\xa5": b"\\", "\u203e": b"~"}
_GB18030_2005: Final = dict(
    zip(
        "\ue78d\ue78e\ue78f\ue790\ue791\ue792\ue793\ue794\ue795\ue796\ue81e\ue826\ue82b\ue82c\ue832\ue843\ue854\ue864",
        b"\xa6\xd9 \xa6\xda \xa6\xdb \xa6\xdc \xa6\xdd \xa6\xde \xa6\xdf \xa6\xec \xa6\xed \xa6\xf3"
        b" \xfeY \xfea \xfef \xfeg \xfem \xfe~ \xfe\x90 \xfe\xa0".split(),
        strict=True,
    )
)
_BIG5_LAST: Final = frozenset("\u2550\u255e\u2561\u256a\u5341\u5345")
_TO_ASCII, _TO_ROMAN, _TO_JIS = b"\x1b(B", b"\x1b(J", b"\x1b$B"


def with_query_in(href: str, charset: str) -> str:
    """The href with its query in this charset; a character that the charset lacks becomes &#NUMBER;, escaped."""
    address, hash_sign, fragment = href.partition("#")
    path, question, query = address.partition("?")
    if query.isascii() or charset in _QUERIES_IN_UTF8:
        return href
    query = query.translate(_DROPPED)
    escaped = _iso_2022_jp(query) if charset == "iso-2022-jp" else _escaped(query, charset)
    return f"{path}{question}{escaped}{hash_sign}{fragment}"


def _escaped(query: str, charset: str) -> str:
    table = _bytes_by_character(charset)
    return "".join(
        character
        if character.isascii()
        else _quoted(character, table.get(character) or _four_bytes(character, charset))
        for character in query
    )


def _quoted(character: str, encoded: bytes | None) -> str:
    return f"%26%23{ord(character)}%3B" if encoded is None else quote_from_bytes(encoded, safe=_SAFE)


def _four_bytes(character: str, charset: str) -> bytes | None:
    """The four bytes that gb18030 has for a character outside its table; None: none, or another charset."""
    if charset != "gb18030" or character == "\ue5e5" or "\ud800" <= character <= "\udfff":
        return None
    return b"\x81\x35\xf4\x37" if character == "\ue7c7" else character.encode("gb18030")


@lru_cache(maxsize=64)  # more than there are charsets: a site could change its charset on each page
def _bytes_by_character(charset: str) -> dict[str, bytes]:
    """The bytes of each non-ASCII character: the decoder's table, inverted."""
    if charset not in MULTI_BYTE:
        return _turned_round((bytes((byte,)), character) for byte, character in enumerate(characters_of(charset)))
    if charset == "shift_jis":
        pairs = _pairs(charset, [*range(0x81, 0xA0), *range(0xE0, 0xFD)])
        # Rows 0xED to 0xF9 repeat characters of later rows, or are for private use.
        table = _turned_round(pair for pair in pairs if not 0xED <= pair[0][0] <= 0xF9)
        table |= {chr(0xFF61 + index): bytes((0xA1 + index,)) for index in range(len(_HALF_WIDTH))}
        return {**table, **_JAPANESE, "\x80": b"\x80", "\u2212": table["\uff0d"]}
    if charset == "euc-jp":
        table = _turned_round(_pairs(charset, _ROWS))
        return {**table, **_JAPANESE, "\u2212": table["\uff0d"]}
    if charset == "big5":
        pairs = [pair for pair in _pairs(charset, _ROWS) if pair[0][0] >= 0xA1]
        return {**_turned_round(pairs), **{character: pair for pair, character in pairs if character in _BIG5_LAST}}
    table = _turned_round(_pairs(charset, _ROWS))
    if charset in ("gbk", "gb18030"):
        table |= _GB18030_2005
    return table | {"\u20ac": b"\x80"} if charset == "gbk" else table


def _pairs(charset: str, leads: Iterable[int]) -> list[tuple[bytes, str]]:
    """All pairs of bytes that are one character, in byte order."""
    pairs = [bytes((lead, trail)) for lead in leads for trail in _TRAILS]
    # A line feed ends the sequence of a broken pair.
    texts = text_of(b"\n".join(pairs), charset).split("\n")
    return [(pair, text) for pair, text in zip(pairs, texts, strict=True) if len(text) == 1]


def _turned_round(pairs: Iterable[tuple[bytes, str]]) -> dict[str, bytes]:
    table: dict[str, bytes] = {}
    for encoded, character in pairs:
        if not character.isascii() and character != "\ufffd":
            table.setdefault(character, encoded)
    return table


def _iso_2022_jp(query: str) -> str:
    """The query in ISO-2022-JP, whose escape sequences switch the meaning of the bytes after them."""
    kanji = _bytes_by_character("euc-jp")
    pieces, state = [], _TO_ASCII
    for given in query:
        character = _full_width(given) if ord(given) in _HALF_WIDTH else given
        encoded = kanji.get(character)
        if encoded is None:
            needed = _TO_ROMAN if state == _TO_ROMAN and character not in "\\~" else _TO_ASCII
        else:
            needed = _TO_ROMAN if len(encoded) == 1 else _TO_JIS
        if needed != state:
            pieces.append(quote_from_bytes(needed, safe=_SAFE))
            state = needed
        seven_bits = encoded and bytes(byte & 0x7F for byte in encoded)
        pieces.append(character if character.isascii() else _quoted(character, seven_bits))
    if state != _TO_ASCII:
        pieces.append(quote_from_bytes(_TO_ASCII, safe=_SAFE))
    return "".join(pieces)


def _full_width(character: str) -> str:
    return {"\uff9e": "\u309b", "\uff9f": "\u309c"}.get(character) or unicodedata.normalize("NFKC", character)
