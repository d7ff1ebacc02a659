"""Where a worker remembers the links of pages, so that what most pages have in common is worked out once.

The memo has one part per origin. Its names are hrefs as found where those start with http:// or a slash, else the
rooted form of the relative ones, so that the pages of an origin share all they have in common.
"""

from __future__ import annotations

import msgspec

WEB = ("https://", "http://")
MAKES_A_HOST = frozenset("/\\\t\n\r")  # after one slash


class Link(msgspec.Struct, frozen=True, gc=False):
    """A URL found or given, with all that the rules say of it.

    `merged`: the key form differs from the URL. `rejected`: the rule that keeps it out, one of REASONS; "out_of_scope"
    is given only where no other rule does, so that a caller who overrides the scope has a link good to use.
    """

    url: str
    key: int
    lane: str
    shape: int
    merged: bool = False
    rejected: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to tell of it but its key."""
        return self.rejected is None and not self.merged


class Memo:
    """What is known of an origin's hrefs: the link of each, and for the plain ones the key alone."""

    __slots__ = ("keys", "links")

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self.keys: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.links)

    def clear(self) -> None:
        self.links.clear()
        self.keys.clear()


class Place:
    """Where hrefs are found: a page's URL and what its relative hrefs are remembered under."""

    __slots__ = ("base", "folder", "given", "memo", "origin", "page")

    def __init__(self, given: str, base: str, origin: str, folder: str, page: str, memo: Memo) -> None:
        self.given = given
        self.base = base
        self.origin = origin
        self.folder = folder
        self.page = page
        self.memo = memo

    def other_name(self, name: str) -> str:
        """http://host/x for /x on that host, and the other way round; empty where the two may differ."""
        rooted = name.removeprefix(self.origin)
        if not self.folder or rooted[:1] != "/" or rooted[1:2] in MAKES_A_HOST:
            return ""
        return rooted if rooted != name else self.origin + name


def name_of(href: str, place: Place) -> str:
    """What the link of an href is remembered under; empty for one that is not."""
    first = href[:1]
    if first == "/" or href.startswith(WEB):
        return href
    if first == "?":
        return place.page and place.page + href
    if first <= " " or first in "#\\" or ":" in href:
        return ""
    if first != ".":
        return place.folder and place.folder + href
    return place.folder and _rooted(place.folder, href)


def _rooted(folder: str, href: str) -> str:
    """A relative href as it would stand at the root of its host; empty if that could be read as a host."""
    while href.startswith("../"):
        href = href[3:]
        folder = folder[: folder.rfind("/", 0, -1) + 1] or "/"
    return folder + href if folder != "/" or href[:1] not in MAKES_A_HOST else ""
