"""A worker's memory of the links of pages: a link that many pages have in common is worked out once.

There is one memo per origin. It knows an href that starts with http:// or a slash by that text, and a relative href by
the same href rooted at the host, so that all pages of an origin share their links.
"""

from __future__ import annotations

import msgspec

WEB = ("https://", "http://")
MAKES_A_HOST = frozenset("/\\\t\n\r")  # after one slash: then the next word would be read as a host
# What most relative hrefs begin with, before or after one "../".
_USUAL = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_~")


class Link(msgspec.Struct, frozen=True, gc=False):
    """A URL found or given, with all that the rules say about it.

    `merged`: the key form differs from the URL. `rejected`: the rule that keeps it out, one of REASONS. "out_of_scope"
    and "facets" come last: a caller who overrides them has a link that no other rule keeps out.
    """

    url: str
    key: int
    lane: str
    shape: int
    merged: bool = False
    rejected: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether its key says everything about it: it is neither rejected nor merged."""
        return self.rejected is None and not self.merged


class Memo:
    """The known hrefs of an origin: the link of each, and for plain links the key alone."""

    __slots__ = ("keys", "links")

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self.keys: dict[str, int] = {}

    def clear(self) -> None:
        """Forget every href."""
        self.links.clear()
        self.keys.clear()


class LinkBase:
    """The URL that the hrefs of a page are relative to, taken apart for looking them up in the memo of its origin.

    `given` is the URL as it was given, `base` its canonical form. `folder` and `page` are its path up to the last
    slash and as a whole, `above` the folder that ".." stands for; empty where relative hrefs are not remembered."""

    __slots__ = ("above", "base", "folder", "given", "memo", "origin", "page")

    def __init__(self, given: str, base: str, origin: str, folder: str, page: str, memo: Memo) -> None:
        self.given = given
        self.base = base
        self.origin = origin
        self.folder = folder
        self.above = folder[: folder.rfind("/", 0, -1) + 1] or folder
        self.page = page
        self.memo = memo

    def other_name(self, name: str) -> str:
        """http://host/x for /x on that host, and the reverse; empty where the two may mean different URLs."""
        rooted = name.removeprefix(self.origin)
        if not self.folder or rooted[:1] != "/" or rooted[1:2] in MAKES_A_HOST:
            return ""
        return rooted if rooted != name else self.origin + name


def names_of(hrefs: list[str], link_base: LinkBase) -> list[str]:
    """The names of hrefs in the memo, as `name_of` gives them."""
    folder, above = link_base.folder, link_base.above
    if not folder:
        return [name_of(href, link_base) for href in hrefs]
    # In one expression, because this is done for every relative link of every page.
    return [
        folder + href
        if href[:1] in _USUAL and ":" not in href
        else above + href[3:]
        if href[:3] == "../" and href[3:4] in _USUAL and ":" not in href
        else name_of(href, link_base)
        for href in hrefs
    ]


def name_of(href: str, link_base: LinkBase) -> str:
    """The name of an href in the memo; empty for an href that is not remembered."""
    first = href[:1]
    if first == "/" or href.startswith(WEB):
        return href
    if first == "?":
        return link_base.page and link_base.page + href
    if first <= " " or first in "#\\" or ":" in href:
        return ""
    if first != ".":
        return link_base.folder and link_base.folder + href
    return link_base.folder and _rooted(link_base.folder, href)


def _rooted(folder: str, href: str) -> str:
    """A relative href with its path from the root of its host; empty if that could be read as a host."""
    while href.startswith("../"):
        href = href[3:]
        folder = folder[: folder.rfind("/", 0, -1) + 1] or "/"
    return folder + href if folder != "/" or href[:1] not in MAKES_A_HOST else ""
