"""Bytes to text as browsers do it: by byte order mark, header, declaration, else by trying. Never raises.

What bytes mean in a charset is told by the Encoding Standard, and not by Python's codecs, which differ from it in
hundreds of characters and in what a broken character swallows. Its reference decoder, encoding_rs, comes with the HTTP
client.
"""

from __future__ import annotations

import codecs
import re
from functools import lru_cache
from typing import Final

from pyreqwest.response import ResponseBuilder

from shoal.charset.declared import declared_in_head, declared_in_xml, declared_later
from shoal.charset.labels import charset_named

# The charsets that do not have exactly one character for each byte.
MULTI_BYTE: Final = frozenset(
    ("utf-16le", "utf-16be", "gbk", "gb18030", "big5", "euc-jp", "iso-2022-jp", "shift_jis", "euc-kr", "replacement")
)
_MARKS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16le"), (codecs.BOM_UTF16_BE, "utf-16be"))
_ANY_MARK: Final = tuple(mark for mark, _ in _MARKS)
_MARKUP_START: Final = re.compile(rb"[\x00-\x20]*+<")
_HEADER: Final = re.compile(r"(?<![\w-])charset\s*=\s*[\"']?\s*([^\s\"';,]+)", re.IGNORECASE)


def charset_of(body: bytes, content_type: str | None) -> str:
    """The charset of this body by its name in the Encoding Standard, in lower case: utf-8, windows-1252, shift_jis."""
    charset = marked_charset(body) or (_stated(content_type) if content_type else None)
    if charset is not None:
        return charset
    kind = (content_type or "").lower()
    is_html = "html" in kind or ("xml" not in kind and _MARKUP_START.match(body) is not None)
    # Nothing is searched in JSON, say, which may have HTML in its texts, nor beyond the declaration of XML.
    charset = declared_in_head(body) if is_html else declared_in_xml(body)
    if charset is None:
        charset = "utf-8" if is_utf8(body) else "windows-1252"
        if is_html:
            charset = declared_later(body, fallback=charset) or charset
    return charset


def marked_charset(body: bytes) -> str | None:
    """The charset of a byte order mark, if the body begins with one."""
    if not body.startswith(_ANY_MARK):
        return None
    return next(name for mark, name in _MARKS if body.startswith(mark))


def is_utf8(body: bytes) -> bool:
    """Whether every byte of this means something in UTF-8."""
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def text_of(body: bytes, charset: str) -> str:
    """The body as text, without its byte order mark; bytes that mean nothing in this charset become �."""
    name = charset_named(charset) or "utf-8"
    if name == "utf-8":
        return body.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace")
    if name in MULTI_BYTE:
        return _decoded(body, name)
    return codecs.charmap_decode(body, "strict", characters_of(name))[0]


@lru_cache(maxsize=32)
def characters_of(charset: str) -> str:
    """The 256 characters of a charset with one byte for each; � for bytes that mean nothing."""
    return _decoded(bytes(range(256)), charset)


def _decoded(body: bytes, charset: str) -> str:
    answer = ResponseBuilder().header("content-type", f"text/plain; charset={charset}").body_bytes(body)
    return answer.build_sync().text()


@lru_cache(maxsize=256)
def _stated(content_type: str) -> str | None:
    found = _HEADER.search(content_type[:500])
    return charset_named(found[1]) if found else None
