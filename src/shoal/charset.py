"""Bytes to text as browsers do it: by byte order mark, header, declaration, else by trying. Never raises."""

from __future__ import annotations

import codecs
import re
from functools import lru_cache
from typing import Final

LOOKED_AT: Final = 1024
MAX_LABEL: Final = 40

_MARKS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_HEADER: Final = re.compile(r"charset\s*=\s*[\"']?\s*([^\s\"';,]+)", re.IGNORECASE)
_META: Final = re.compile(rb"<meta\b[^>]{0,500}?\bcharset\s*=\s*[\"']?\s*([^\s\"'/>;]+)", re.IGNORECASE)
_XML: Final = re.compile(rb"^\s*<\?xml\b[^>]{0,200}?\bencoding\s*=\s*[\"']([^\"'>]+)[\"']", re.IGNORECASE)

# Labels of the web (WHATWG) that mean something else than Python's codec of that name.
_LABELS: Final = {
    **dict.fromkeys(
        (
            "ascii",
            "ansi_x3.4-1968",
            "us-ascii",
            "iso-8859-1",
            "iso8859-1",
            "iso_8859-1",
            "iso88591",
            "latin1",
            "latin-1",
            "l1",
            "cp819",
            "ibm819",
            "x-cp1252",
            "windows-1252",
            "cp1252",
        ),
        "windows-1252",
    ),
    **dict.fromkeys(("iso-8859-9", "iso8859-9", "iso88599", "latin5", "l5", "x-cp1254"), "windows-1254"),
    **dict.fromkeys(("iso-8859-11", "iso8859-11", "tis-620", "dos-874", "windows-874"), "cp874"),
    **dict.fromkeys(("gb2312", "gb_2312-80", "gbk", "x-gbk", "chinese", "csgb2312", "gb18030"), "gb18030"),
    **dict.fromkeys(("big5", "big5-hkscs", "cn-big5", "x-x-big5", "csbig5"), "big5hkscs"),
    **dict.fromkeys(("shift_jis", "shift-jis", "sjis", "x-sjis", "ms_kanji", "windows-31j", "ms932"), "cp932"),
    **dict.fromkeys(("euc-kr", "ks_c_5601-1987", "ksc5601", "korean", "windows-949", "cseuckr"), "cp949"),
    **dict.fromkeys(("x-euc-jp", "euc-jp"), "euc-jp"),
    **dict.fromkeys(("utf-16", "utf16", "unicode", "ucs-2", "csunicode", "iso-10646-ucs-2"), "utf-16-le"),
    **dict.fromkeys(("utf8", "utf-8", "unicode-1-1-utf-8", "x-unicode20utf8", "unicode11utf8"), "utf-8"),
    **dict.fromkeys(("iso-8859-8-i", "logical", "csiso88598i"), "iso-8859-8"),
    **dict.fromkeys(("x-mac-roman", "macintosh", "mac", "csmacintosh"), "mac-roman"),
    **dict.fromkeys(("x-cp1250",), "windows-1250"),
    **dict.fromkeys(("x-cp1251",), "windows-1251"),
    **dict.fromkeys(("koi", "koi8", "koi8-ru", "cskoi8r"), "koi8-r"),
}
# Codecs that Python knows and no page may ask for: they are slow, stateful or not text at all.
_REFUSED: Final = frozenset(
    {"idna", "mbcs", "oem", "punycode", "raw_unicode_escape", "undefined", "unicode_escape", "utf_7"}
)


def charset_of(body: bytes, content_type: str | None) -> str:
    """The name of the codec for this body; always one that Python has, whatever the page declares."""
    for mark, name in _MARKS:
        if body.startswith(mark):
            return name
    stated = _HEADER.search(content_type[:500]) if content_type else None
    codec = codec_of(stated[1]) if stated else None
    return codec or _declared(body[:LOOKED_AT]) or ("utf-8" if _is_utf8(body) else "windows-1252")


def _declared(head: bytes) -> str | None:
    for pattern in (_META, _XML):
        found = pattern.search(head)
        codec = codec_of(found[1].decode("latin-1")) if found else None
        if codec is not None:
            # The declaration was readable as ASCII, so the page is not UTF-16, whatever it says.
            return "utf-8" if codec.startswith("utf-16") else codec
    return None


def text_of(body: bytes, charset: str) -> str:
    """The body as text, without its byte order mark; bytes that cannot be decoded become �."""
    for mark, name in _MARKS:
        if name == charset and body.startswith(mark):
            body = body[len(mark) :]
            break
    try:
        return body.decode(charset, "replace")
    except (LookupError, ValueError):
        return body.decode("utf-8", "replace")


@lru_cache(maxsize=256)
def codec_of(label: str) -> str | None:
    """The codec that a label of the web means; None for an unknown label."""
    label = label.strip().lower()
    if not label or len(label) > MAX_LABEL or not label.isascii() or "\x00" in label:
        return None
    if label in _LABELS:
        return _LABELS[label]
    try:
        found = codecs.lookup(label)
    except (LookupError, ValueError):
        return None
    # Not public, but nothing else says whether a codec makes text: rot13 and zlib are codecs, too.
    is_text = getattr(found, "_is_text_encoding", True)
    return found.name if is_text and found.name.replace("-", "_") not in _REFUSED else None


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
