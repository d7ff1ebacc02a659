"""The charset that a document declares in itself, found as browsers find it.

First the prescan of the HTML Standard over the first 1024 bytes: a rough tokenizer that skips comments and the values
of attributes. A browser also obeys a <meta> that its parser meets later, and reads the page again; so does this.
"""

from __future__ import annotations

import re
from typing import Final

from shoal.charset.labels import charset_named

PRESCANNED: Final = 1024

# A hostile page must not be walked through for seconds.
_SEARCHED: Final = 1_048_576
_MOST_METAS: Final = 1_000
_LONGEST_META: Final = 2_048
_SLASH: Final = 0x2F
_SPACE: Final = rb"[\t\n\f\r ]"
_NAME: Final = rb"(?:=[^\t\n\f\r />=]*+|[^\t\n\f\r />=]++)"
_VALUE: Final = rb"""(?:"[^"]*+"|'[^']*+'|[^\t\n\f\r >"'][^\t\n\f\r >]*+|(?=>))"""
# A name that is followed by an = has a value: without its closing quote the tag has no end.
_ATTRIBUTE: Final = rb"%s(?:%s*+=%s*+%s|(?!%s*+=))" % (_NAME, _SPACE, _SPACE, _VALUE, _SPACE)
_ATTRIBUTES: Final = rb"((?:[\t\n\f\r /]++|%s)*+)>" % _ATTRIBUTE
_ONE_ATTRIBUTE: Final = re.compile(rb"(%s)(?:%s*+=%s*+(%s))?+" % (_NAME, _SPACE, _SPACE, _VALUE))
# A comment, a <meta>, another tag, other markup; else one of these without its end.
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
# Elements whose content is text to the parser, whatever it looks like.
_RAW: Final = {
    name: re.compile(b"</" + name + rb"[\t\n\f\r />]", re.IGNORECASE)
    for name in (b"iframe", b"noembed", b"noframes", b"script", b"style", b"textarea", b"title", b"xmp")
}


def declared_in_head(body: bytes) -> str | None:
    """The charset that the first 1024 bytes declare by the rules of the prescan, or an XML declaration."""
    head = body[:PRESCANNED]
    return (_prescan(head) if b"charset" in head.lower() else None) or declared_in_xml(head)


def declared_in_xml(body: bytes) -> str | None:
    """The charset of the XML declaration that a document begins with."""
    for start, charset in _WIDE_XML:
        if body.startswith(start):
            return charset
    return _named(xml_label(body))


def xml_label(body: bytes) -> str:
    """The label in the XML declaration at the start of a document; empty if there is none."""
    found = _XML.match(body, 0, PRESCANNED)
    return (found[1] or found[2] or b"").decode("latin-1") if found else ""


def declared_later(body: bytes, *, fallback: str) -> str | None:
    """The charset of the first <meta> that a parser obeys, wherever it stands; None if there is none.

    `fallback` is the charset without one: a <meta> that says the same is not looked at closely."""
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
    """Where the first tag at `least` or later begins that a parser sees, if it begins to read at `position`.

    It sees none in a comment, in the value of an attribute, in a script and the like."""
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
    # The declaration was readable as ASCII, so the document is not UTF-16, whatever it says.
    return "utf-8" if charset in ("utf-16le", "utf-16be") else charset
