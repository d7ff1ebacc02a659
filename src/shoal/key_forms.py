"""The key form of a URL: what is compared, so that one page has one key in all its spellings."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence

from shoal.settings import SamePage

# Session ids beside those known by name: ;jsessionid=1A2B, /(S(1a2b))/, and sid= where it is long enough to be one.
_SESSION = re.compile(
    r";jsessionid=[^/?;]*|/\([A-Z]\([0-9A-Za-z_-]{16,}\)\)(?=/)|(?<=[?&])sid=[0-9A-Za-z,-]{20,}(?=&|$)", re.IGNORECASE
)
# Characters that a browser leaves as they are, but other programs escape: [ \ ] ^ ` { | }
_TWO_SPELLINGS = re.compile(r"%(?:5[BCDE]|60|7[BCD])")
_PLAIN = {f"%{ord(char):02X}": char for char in "[\\]^`{|}"}
_INDEX = re.compile(r"/(?:index\.(?:html?|php|aspx?|jsp|shtml|cfm)|default\.(?:html?|aspx?))$", re.IGNORECASE)
_NAME = operator.itemgetter(0)


class KeyForms:
    """Makes key forms: the canonical form without what does not make a page another page."""

    def __init__(self, strip: Sequence[str], *, same_page: Sequence[SamePage] = ()) -> None:
        patterns = [one_spelling(pattern, is_query=True) for pattern in strip]
        self._names = frozenset(pattern for pattern in patterns if not pattern.endswith("*"))
        self._prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
        self._strips_sessions = "jsessionid" in self._names
        self._merges_index = "index" in same_page
        self._merges_slash = "trailing_slash" in same_page
        self.merges_paths = self._merges_index or self._merges_slash

    def of(self, url: str, slash: int = 8) -> tuple[str, str, list[str]]:
        """The key form of a canonical URL, its path, and the sorted parameters left in its query."""
        slash = url.index("/", slash)
        if self._strips_sessions and (";" in url or "/(" in url or "sid=" in url):
            url = url[:slash] + _SESSION.sub("", url[slash:])
        question = url.find("?", slash)
        path = url[slash:] if question < 0 else url[slash:question]
        form = url if question < 0 else url[:question]
        if self.merges_paths or "%" in path:
            form = self._path_form(form, path)
        if question < 0:
            return form, path, []
        parameters = self._parameters(url[question + 1 :])
        if parameters:
            form += "?" + "&".join(parameters)
        return form, path, parameters

    def _parameters(self, query: str) -> list[str]:
        if "%" in query:
            query = one_spelling(query, is_query=True)
        named = [(piece.partition("=")[0], piece) for piece in query.split("&") if piece]
        kept = [pair for pair in named if pair[0] not in self._names and not pair[0].startswith(self._prefixes)]
        kept.sort(key=_NAME)
        return [piece for _, piece in kept]

    def _path_form(self, url: str, path: str) -> str:
        """The key form of a URL without its query."""
        origin = url[: -len(path)]
        path = one_spelling(path)
        if self._merges_index:
            path = _INDEX.sub("/", path)
        if self._merges_slash and path != "/":
            path = path.removesuffix("/")
        return origin + path


def one_spelling(text: str, *, is_query: bool = False) -> str:
    """A part of a canonical URL with one of the two spellings of [ ] { } | and the like; in a query also of a space."""
    if is_query:
        text = text.replace("%20", "+")
    return _TWO_SPELLINGS.sub(lambda escape: _PLAIN[escape[0]], text)
