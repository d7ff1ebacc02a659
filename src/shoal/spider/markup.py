"""Untrusted markup: limits of the HTML that is parsed, and XML without entities.

A few hostile kilobytes of HTML keep the parser busy for hours, or fill the memory: at each new block it searches the
open elements, into each new paragraph it copies the formatting left open, and it compares each attribute with all
before it. These costs are estimated first, from a rough outline of the page.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final, NamedTuple
from xml.etree import ElementTree
from xml.parsers import expat


class UnsafeXml(ValueError):  # noqa: N818 -- reads as what it is
    """The document declares entities."""


def parse_xml(body: bytes) -> ElementTree.Element:
    """The root element of a document in UTF-8, whatever encoding it declares.

    Raises ValueError if the document is not well-formed or declares entities."""
    builder = ElementTree.TreeBuilder()
    parser = expat.ParserCreate("utf-8", "}")
    parser.buffer_text = True
    parser.StartElementHandler = lambda name, attrs: builder.start(_clark(name), _clark_all(attrs))
    parser.EndElementHandler = lambda name: builder.end(_clark(name))
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = _refuse_entity
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        raise ValueError(f"not well-formed XML: {error}") from None
    return builder.close()


def _clark(name: str) -> str:
    return "{" + name if "}" in name else name


def _clark_all(attributes: dict[str, str]) -> dict[str, str]:
    return {_clark(name): value for name, value in attributes.items()}


def _refuse_entity(*_: object) -> None:
    raise UnsafeXml("the document declares entities; they are not expanded")


# A page below all of these limits is quick to parse, whatever it contains: nearly all pages are.
PLAIN_TAGS: Final = 1_000
PLAIN_BYTES: Final = 32_768
PLAIN_WORK: Final = 10_000
PLAIN_SIZE: Final = 262_144
# The limits of a page: steps of the parser (about 3 ns each), and elements the parser adds (about 400 bytes each).
MOST_STEPS: Final = 300_000_000
MOST_COPIES: Final = 400_000
LONG_TAG: Final = 200
MOST_WALKED: Final = 5_000_000  # steps of this check itself

_FORMATTING: Final = frozenset(b"b big code em font i nobr s small strike strong tt u".split())
# Both cases of each letter instead of IGNORECASE, and a look-ahead at the first letter: a third of the time.
_FORMATTED: Final = re.compile(
    rb"<(?=[bcefinstuBCEFINSTU])(?:[bB](?:[iI][gG])?|[cC][oO][dD][eE]|[eE][mM]|[fF][oO][nN][tT]|[iIuU]|[nN][oO][bB][rR]"
    rb"|[sS](?:[mM][aA][lL][lL]|[tT][rR](?:[iI][kK][eE]|[oO][nN][gG]))?|[tT][tT])[\s/]"
)
_VOID: Final = frozenset(b"area base br col embed hr img input keygen link meta param source track wbr".split())
_RAW: Final = {name: re.compile(b"</" + name + rb"\b", re.IGNORECASE) for name in (b"script", b"style", b"textarea")}
# An end tag closes no element outside of these.
_BARRIERS: Final = frozenset(b"applet caption foreignobject html marquee object table td template th".split())
_TABLE_PARTS: Final = frozenset(b"caption table tbody td template tfoot th thead tr".split())
_CLOSES: Final[dict[bytes, frozenset[bytes]]] = {
    b"a": frozenset({b"a"}),
    b"button": frozenset({b"button"}),
    b"li": frozenset({b"li", b"p"}),
    **dict.fromkeys((b"dd", b"dt"), frozenset({b"dd", b"dt", b"p"})),
    **dict.fromkeys((b"option", b"optgroup"), frozenset({b"option", b"optgroup"})),
    **dict.fromkeys((b"rp", b"rt"), frozenset({b"rp", b"rt"})),
    **dict.fromkeys((b"td", b"th"), frozenset({b"td", b"th"})),
    b"tr": frozenset({b"td", b"th", b"tr"}),
    **dict.fromkeys((b"tbody", b"thead", b"tfoot"), frozenset({b"tbody", b"thead", b"tfoot", b"td", b"th", b"tr"})),
    **dict.fromkeys(
        b"address article aside blockquote center details dialog dir div dl fieldset figcaption figure footer form h1"
        b" h2 h3 h4 h5 h6 header hgroup hr main menu nav ol p pre section summary table ul".split(),
        frozenset({b"p"}),
    ),
}
# Elements that may lie between a start tag and the open element that it closes.
_PASSED: Final = _FORMATTING | frozenset(b"a abbr cite label p span sub sup".split())
_TAG: Final = re.compile(
    rb"""<(?:!--(?:(?!-->).)*+|(/?)([a-zA-Z][^\s/>]{0,40}+)((?:[^>"']++|"[^"]*+"|'[^']*+')*+))""", re.DOTALL
)


class UnfitMarkup(ValueError):  # noqa: N818 -- reads as what it is
    """Parsing this page would cost too much."""


class MarkupLimits(NamedTuple):
    """The limits of a page's HTML."""

    tags: int = 1_000_000
    nesting: int = 1_000


def check_markup(body: bytes, limits: MarkupLimits) -> None:
    """Raise UnfitMarkup for a page that would take too long to parse, or too much memory."""
    # Faster than `count`.
    tags = len(body) - len(body.replace(b"<", b""))
    if tags > limits.tags:
        raise UnfitMarkup(f"the page has more than {limits.tags:,} tags")
    if not _is_plain(body, tags):
        _Outline(limits).read(body)


def _is_plain(body: bytes, tags: int) -> bool:
    if tags <= PLAIN_TAGS and len(body) <= PLAIN_BYTES:
        return True
    if tags > PLAIN_WORK or len(body) > PLAIN_SIZE or _has_long_gap(body):
        return False
    # Of formatting without attributes, the parser keeps at most three of each kind open.
    formatting = len(_FORMATTED.findall(body)) + 3 * len(_FORMATTING)
    return formatting * tags <= MOST_COPIES


def _has_long_gap(body: bytes) -> bool:
    """Whether a stretch without > is long enough for a tag with very many attributes."""
    step = PLAIN_BYTES // 2
    return any(body.find(b">", start, start + step) < 0 for start in range(0, len(body) - step, step))


class _Outline:
    """The open elements at each point of the page, approximately as the parser keeps them."""

    def __init__(self, limits: MarkupLimits) -> None:
        self._deepest = limits.nesting
        self._open: list[bytes] = []
        self._count: defaultdict[bytes, int] = defaultdict(int)
        self._active: dict[bytes, list[bytes]] = {}
        self._lost: list[bytes] = []
        self._steps = 0
        self._walked = 0
        self._copies = 0

    def read(self, body: bytes) -> None:
        """Go through the tags of the page."""
        position, search = 0, _TAG.search
        while match := search(body, position):
            position = match.end()
            slash, name, attributes = match.groups()
            if name is None:
                continue
            name = name.lower()
            if slash:
                self._end(name)
                continue
            self._start(name, attributes)
            if name in _RAW:
                end = _RAW[name].search(body, position)
                position = end.start() if end else len(body)

    def _start(self, name: bytes, attributes: bytes) -> None:
        if self._lost:
            self._reopen()
        if len(attributes) > LONG_TAG:
            self._steps += len(attributes.split()) ** 2
        if name in _CLOSES:
            self._steps += len(self._open)
            self._close_any(_CLOSES[name])
        if name not in _VOID:
            if name in _FORMATTING:
                self._format(name, attributes)
            self._open.append(name)
            self._count[name] += 1
            if len(self._open) > self._deepest:
                raise UnfitMarkup(f"elements lie more than {self._deepest:,} deep in each other")
        if self._steps > MOST_STEPS or self._walked > MOST_WALKED:
            raise UnfitMarkup("its tags are nested or filled with attributes in a way that takes too long to parse")

    def _end(self, name: bytes) -> None:
        if name in _FORMATTING:
            self._unformat(name)
        if not self._count[name]:
            return
        opened = self._open
        if opened[-1] == name:
            opened.pop()
            self._count[name] -= 1
            return
        barriers = _BARRIERS if name not in _TABLE_PARTS else ()
        for depth in range(len(opened) - 2, -1, -1):
            self._walked += 1
            if opened[depth] == name:
                self._cut(depth)
                return
            if opened[depth] in barriers:
                return

    def _close_any(self, names: frozenset[bytes]) -> None:
        """Close elements that a new one ends: a block ends a paragraph, a list item the item before it."""
        opened = self._open
        for depth in range(len(opened) - 1, -1, -1):
            self._walked += 1
            if opened[depth] in names:
                self._cut(depth)
                if len(names) == 1:
                    return
            elif opened[depth] not in _PASSED:
                return

    def _cut(self, depth: int) -> None:
        """Close every element from this depth on; formatting inside them stays in effect."""
        gone = self._open[depth:]
        del self._open[depth:]
        for name in gone:
            self._count[name] -= 1
        if len(gone) > 1:
            self._lost += [name for name in gone[1:] if self._active.get(name)]

    def _format(self, name: bytes, attributes: bytes) -> None:
        active = self._active.setdefault(name, [])
        self._walked += len(active) // 10
        if active.count(attributes) < 3:
            active.append(attributes)

    def _unformat(self, name: bytes) -> None:
        if self._active.get(name):
            self._active[name].pop()
        if name in self._lost:
            self._lost.remove(name)

    def _reopen(self) -> None:
        """Formatting left open continues in the next block: the parser copies its elements there."""
        room = sum(map(len, self._active.values()))
        again, self._lost = self._lost[-room:] if room else [], []
        self._copies += len(again)
        if self._copies > MOST_COPIES:
            raise UnfitMarkup("formatting is left open so often that the page would grow without end")
        self._open += again
        for name in again:
            self._count[name] += 1
