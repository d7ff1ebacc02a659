"""A worker's cache of links, one memo per origin: a link that many pages share is resolved once.

An href that starts with http:// or a slash is its own name in the memo; a relative href is named by its path from the
host's root, so that all pages of an origin share their links.
"""

from __future__ import annotations

import msgspec

WEB = ("https://", "http://")
MAKES_A_HOST = frozenset("/\\\t\n\r")  # after a slash they make the next word a host
# The first character of most relative hrefs, before or after one "../".
_USUAL = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_~")


class Link(msgspec.Struct, frozen=True, gc=False):
    """A resolved URL and its verdict.

    - `merged`: the key form differs from the URL
    - `rejected`: the rule that rejects it, one of REASONS. "out_of_scope" and "facets" are checked last: a caller may
      override them, as no other rule rejects the link
    """

    url: str
    key: int
    lane: str
    shape: int
    merged: bool = False
    rejected: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is neither rejected nor merged: then its key is enough."""
        return self.rejected is None and not self.merged


class Memo:
    """The known hrefs of an origin: the link of each, and the keys of plain links."""

    __slots__ = ("keys", "links")

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self.keys: dict[str, int] = {}

    def clear(self) -> None:
        """Forget every href."""
        self.links.clear()
        self.keys.clear()


class LinkBase:
    """The base URL of a page's hrefs, split for look-ups in the memo of its origin.

    - `given`: the URL as given; `base`: its canonical form
    - `page`: its path; `folder`: the path up to the last slash; `above`: the folder ".."; empty where relative hrefs
      are not remembered
    """

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
        """http://host/x for /x on that host, and the reverse; empty if the two may be different URLs."""
        rooted = name.removeprefix(self.origin)
        if not self.folder or rooted[:1] != "/" or rooted[1:2] in MAKES_A_HOST:
            return ""
        return rooted if rooted != name else self.origin + name


def names_of(hrefs: list[str], link_base: LinkBase) -> list[str]:
    """The names of hrefs in the memo, as by `name_of`."""
    folder, above = link_base.folder, link_base.above
    if not folder:
        return [name_of(href, link_base) for href in hrefs]
    # One expression, because it runs for every relative link of every page.
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
    """A relative href as a path from the host's root; empty if it could be read as a host."""
    while href.startswith("../"):
        href = href[3:]
        folder = folder[: folder.rfind("/", 0, -1) + 1] or "/"
    return folder + href if folder != "/" or href[:1] not in MAKES_A_HOST else ""
