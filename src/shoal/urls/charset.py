"""The charset of a body, as browsers find it (byte order mark, header, declaration, else by trying), and its text.

A declaration is found by the prescan of the HTML Standard over the first 1024 bytes, and in a later <meta> that a
browser's parser would obey, too. Bytes are decoded by the Encoding Standard: Python's codecs differ from it in hundreds
of characters and after broken ones. Its reference decoder, encoding_rs, is part of the HTTP client.
"""

from __future__ import annotations

import codecs
import re
from functools import lru_cache
from typing import Final

from pyreqwest.response import ResponseBuilder

_LONGEST: Final = 40
_SPACES: Final = "\t\n\f\r "
# The name of each charset in lower case, then its labels.
_NAMES_AND_LABELS: Final = """
utf-8: unicode-1-1-utf-8 unicode11utf8 unicode20utf8 utf-8 utf8 x-unicode20utf8
ibm866: 866 cp866 csibm866 ibm866
iso-8859-2: csisolatin2 iso-8859-2 iso-ir-101 iso8859-2 iso88592 iso_8859-2 iso_8859-2:1987 l2 latin2
iso-8859-3: csisolatin3 iso-8859-3 iso-ir-109 iso8859-3 iso88593 iso_8859-3 iso_8859-3:1988 l3 latin3
iso-8859-4: csisolatin4 iso-8859-4 iso-ir-110 iso8859-4 iso88594 iso_8859-4 iso_8859-4:1988 l4 latin4
iso-8859-5: csisolatincyrillic cyrillic iso-8859-5 iso-ir-144 iso8859-5 iso88595 iso_8859-5 iso_8859-5:1988
iso-8859-6: arabic asmo-708 csiso88596e csiso88596i csisolatinarabic ecma-114 iso-8859-6 iso-8859-6-e iso-8859-6-i
    iso-ir-127 iso8859-6 iso88596 iso_8859-6 iso_8859-6:1987
iso-8859-7: csisolatingreek ecma-118 elot_928 greek greek8 iso-8859-7 iso-ir-126 iso8859-7 iso88597 iso_8859-7
    iso_8859-7:1987 sun_eu_greek
iso-8859-8: csiso88598e csisolatinhebrew hebrew iso-8859-8 iso-8859-8-e iso-ir-138 iso8859-8 iso88598 iso_8859-8
    iso_8859-8:1988 visual
iso-8859-8-i: csiso88598i iso-8859-8-i logical
iso-8859-10: csisolatin6 iso-8859-10 iso-ir-157 iso8859-10 iso885910 l6 latin6
iso-8859-13: iso-8859-13 iso8859-13 iso885913
iso-8859-14: iso-8859-14 iso8859-14 iso885914
iso-8859-15: csisolatin9 iso-8859-15 iso8859-15 iso885915 iso_8859-15 l9
iso-8859-16: iso-8859-16
koi8-r: cskoi8r koi koi8 koi8-r koi8_r
koi8-u: koi8-ru koi8-u
macintosh: csmacintosh mac macintosh x-mac-roman
windows-874: dos-874 iso-8859-11 iso8859-11 iso885911 tis-620 windows-874
windows-1250: cp1250 windows-1250 x-cp1250
windows-1251: cp1251 windows-1251 x-cp1251
windows-1252: ansi_x3.4-1968 ascii cp1252 cp819 csisolatin1 ibm819 iso-8859-1 iso-ir-100 iso8859-1 iso88591
    iso_8859-1 iso_8859-1:1987 l1 latin1 us-ascii windows-1252 x-cp1252
windows-1253: cp1253 windows-1253 x-cp1253
windows-1254: cp1254 csisolatin5 iso-8859-9 iso-ir-148 iso8859-9 iso88599 iso_8859-9 iso_8859-9:1989 l5 latin5
    windows-1254 x-cp1254
windows-1255: cp1255 windows-1255 x-cp1255
windows-1256: cp1256 windows-1256 x-cp1256
windows-1257: cp1257 windows-1257 x-cp1257
windows-1258: cp1258 windows-1258 x-cp1258
x-mac-cyrillic: x-mac-cyrillic x-mac-ukrainian
gbk: chinese csgb2312 csiso58gb231280 gb2312 gb_2312 gb_2312-80 gbk iso-ir-58 x-gbk
gb18030: gb18030
big5: big5 big5-hkscs cn-big5 csbig5 x-x-big5
euc-jp: cseucpkdfmtjapanese euc-jp x-euc-jp
iso-2022-jp: csiso2022jp iso-2022-jp
shift_jis: csshiftjis ms932 ms_kanji shift-jis shift_jis sjis windows-31j x-sjis
euc-kr: cseuckr csksc56011987 euc-kr iso-ir-149 korean ks_c_5601-1987 ks_c_5601-1989 ksc5601 ksc_5601 windows-949
replacement: csiso2022kr hz-gb-2312 iso-2022-cn iso-2022-cn-ext iso-2022-kr replacement
utf-16be: unicodefffe utf-16be
utf-16le: csunicode iso-10646-ucs-2 ucs-2 unicode unicodefeff utf-16 utf-16le
x-user-defined: x-user-defined
"""


def charset_named(label: str) -> str | None:
    """The name of the charset with this label, in lower case; None: the Encoding Standard has no such label."""
    return LABELS.get(label.strip(_SPACES).lower()) if len(label) <= _LONGEST else None


def _by_label() -> dict[str, str]:
    charsets = {}
    name = ""
    for word in _NAMES_AND_LABELS.split():
        if word.endswith(":"):
            name = word[:-1]
        else:
            charsets[word] = name
    return charsets


LABELS: Final = _by_label()


PRESCANNED: Final = 1024

# Limits, or a hostile page would take seconds.
_SEARCHED: Final = 1_048_576
_MOST_METAS: Final = 1_000
_LONGEST_META: Final = 2_048
_SLASH: Final = 0x2F
_SPACE: Final = rb"[\t\n\f\r ]"
_NAME: Final = rb"(?:=[^\t\n\f\r />=]*+|[^\t\n\f\r />=]++)"
_VALUE: Final = rb"""(?:"[^"]*+"|'[^']*+'|[^\t\n\f\r >"'][^\t\n\f\r >]*+|(?=>))"""
# A name followed by = has a value: without the closing quote the tag has no end.
_ATTRIBUTE: Final = rb"%s(?:%s*+=%s*+%s|(?!%s*+=))" % (_NAME, _SPACE, _SPACE, _VALUE, _SPACE)
_ATTRIBUTES: Final = rb"((?:[\t\n\f\r /]++|%s)*+)>" % _ATTRIBUTE
_ONE_ATTRIBUTE: Final = re.compile(rb"(%s)(?:%s*+=%s*+(%s))?+" % (_NAME, _SPACE, _SPACE, _VALUE))
# A comment, a <meta>, another tag or other markup; last: one of these without its end.
_MARKUP: Final = re.compile(
    rb"<(?:!--(?:-?>|.*?-->)|meta(?=[\t\n\f\r /])%s|/?([a-z][^\t\n\f\r >]*+)%s|(?!!--|/[a-z])[!/?][^>]*+>"
    rb"|((?:/?[a-z]|[!/?])))" % (_ATTRIBUTES, _ATTRIBUTES),
    re.IGNORECASE | re.DOTALL,
)
_META: Final = re.compile(rb"<meta(?=[\t\n\f\r /])%s" % _ATTRIBUTES, re.IGNORECASE)
_IN_CONTENT: Final = re.compile(
    rb"""charset%s*+=%s*+(?:"([^"]*+)"|'([^']*+)'|([^\t\n\f\r ;"'][^\t\n\f\r ;]*+))""" % (_SPACE, _SPACE), re.IGNORECASE
)
_XML: Final = re.compile(rb"""\s*<\?xml\b[^>]*?\bencoding[\x00-\x20]*=[\x00-\x20]*(?:"([^">]*)"|'([^'>]*)')""")
_WIDE_XML: Final = ((b"<\0?\0x\0", "utf-16le"), (b"\0<\0?\0x", "utf-16be"))
# Elements whose content the parser reads as text.
_RAW: Final = {
    name: re.compile(b"</" + name + rb"[\t\n\f\r />]", re.IGNORECASE)
    for name in (b"iframe", b"noembed", b"noframes", b"script", b"style", b"textarea", b"title", b"xmp")
}


def declared_in_head(body: bytes) -> str | None:
    """The charset declared in the first 1024 bytes: by the prescan, or in an XML declaration."""
    head = body[:PRESCANNED]
    return (_prescan(head) if b"charset" in head.lower() else None) or declared_in_xml(head)


def declared_in_xml(body: bytes) -> str | None:
    """The charset of the XML declaration at the start of a document."""
    for start, charset in _WIDE_XML:
        if body.startswith(start):
            return charset
    return _named(xml_label(body))


def xml_label(body: bytes) -> str:
    """The label in the XML declaration at the start of a document; empty if there is none."""
    found = _XML.match(body, 0, PRESCANNED)
    return (found[1] or found[2] or b"").decode("latin-1") if found else ""


def declared_later(body: bytes, *, fallback: str) -> str | None:
    """The charset of the first <meta> that a parser obeys, anywhere in the document; None: none.

    fallback: the charset without a <meta>; a <meta> with the same charset is not checked further."""
    body = body[:_SEARCHED]
    lowered = body.lower()
    if b"charset" not in lowered:
        return None
    start = tag = 0
    for _ in range(_MOST_METAS):
        start = lowered.find(b"<meta", start)
        if start < 0:
            break
        meta = _META.match(body, start, start + _LONGEST_META)
        charset = _of_meta(meta[1]) if meta else None
        if charset == fallback:
            return charset
        if charset is not None:
            tag = _tag_after(body, tag, start)
            if tag == start:
                return charset
        start += 5
    return None


def _prescan(head: bytes) -> str | None:
    for markup in _MARKUP.finditer(head):
        attributes, _, _, endless = markup.groups()
        if endless:
            return None
        charset = _of_meta(attributes) if attributes else None
        if charset is not None:
            return charset
    return None


def _tag_after(body: bytes, position: int, least: int) -> int:
    """The start of the first tag at `least` or later, for a parser that starts at `position`.

    Tags in comments, attribute values, scripts and the like do not count."""
    while position < least and (markup := _MARKUP.search(body, position)):
        if markup[4]:
            return len(body)
        if markup.start() >= least:
            return markup.start()
        position = markup.end()
        name = (markup[2] or b"").lower()
        if name in _RAW and body[markup.start() + 1] != _SLASH:
            end = _RAW[name].search(body, position)
            position = end.start() if end else len(body)
    return position


def _of_meta(attributes: bytes) -> str | None:
    values: dict[bytes, bytes] = {}
    for attribute in _ONE_ATTRIBUTE.finditer(attributes):
        name, value = attribute.groups(b"")
        values.setdefault(name.lower(), value[1:-1] if value[:1] in (b'"', b"'") else value)
    charset = _named(values.get(b"charset", b"").decode("latin-1"))
    if charset is None and values.get(b"http-equiv", b"").lower() == b"content-type":
        charset = _in_content(values.get(b"content", b""))
    return "windows-1252" if charset == "x-user-defined" else charset


def _in_content(content: bytes) -> str | None:
    found = _IN_CONTENT.search(content)
    return _named((found[1] or found[2] or found[3] or b"").decode("latin-1")) if found else None


def _named(label: str) -> str | None:
    charset = charset_named(label)
    # The declaration is readable as ASCII, so the document is not UTF-16, whatever it declares.
    return "utf-8" if charset in ("utf-16le", "utf-16be") else charset


# The charsets that do not map each byte to one character.
MULTI_BYTE: Final = frozenset(
    ("utf-16le", "utf-16be", "gbk", "gb18030", "big5", "euc-jp", "iso-2022-jp", "shift_jis", "euc-kr", "replacement")
)
_MARKS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16le"), (codecs.BOM_UTF16_BE, "utf-16be"))
_ANY_MARK: Final = tuple(mark for mark, _ in _MARKS)
_MARKUP_START: Final = re.compile(rb"[\x00-\x20]*+<")
_HEADER: Final = re.compile(r"(?<![\w-])charset\s*=\s*[\"']?\s*([^\s\"';,]+)", re.IGNORECASE)


def charset_of(body: bytes, content_type: str | None) -> str:
    """The charset of a body, as named in the Encoding Standard, in lower case: utf-8, windows-1252, shift_jis."""
    charset = marked_charset(body) or (_stated(content_type) if content_type else None)
    if charset is not None:
        return charset
    kind = (content_type or "").lower()
    is_html = "html" in kind or ("xml" not in kind and _MARKUP_START.match(body) is not None)
    # Other types are not searched for <meta>: JSON may contain HTML, XML has only its declaration.
    charset = declared_in_head(body) if is_html else declared_in_xml(body)
    if charset is None:
        charset = "utf-8" if is_utf8(body) else "windows-1252"
        if is_html:
            charset = declared_later(body, fallback=charset) or charset
    return charset


def marked_charset(body: bytes) -> str | None:
    """The charset of the body's byte order mark; None: it has none."""
    if not body.startswith(_ANY_MARK):
        return None
    return next(name for mark, name in _MARKS if body.startswith(mark))


def is_utf8(body: bytes) -> bool:
    """Whether the body is valid UTF-8."""
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def text_of(body: bytes, charset: str) -> str:
    """The body as text, without its byte order mark; invalid bytes become �."""
    name = charset_named(charset) or "utf-8"
    if name == "utf-8":
        return body.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace")
    if name in MULTI_BYTE:
        return _decoded(body, name)
    return codecs.charmap_decode(body, "strict", characters_of(name))[0]


@lru_cache(maxsize=32)
def characters_of(charset: str) -> str:
    """The 256 characters of a single-byte charset; � for invalid bytes."""
    return _decoded(bytes(range(256)), charset)


def _decoded(body: bytes, charset: str) -> str:
    answer = ResponseBuilder().header("content-type", f"text/plain; charset={charset}").body_bytes(body)
    return answer.build_sync().text()


@lru_cache(maxsize=256)
def _stated(content_type: str) -> str | None:
    found = _HEADER.search(content_type[:500])
    return charset_named(found[1]) if found else None
