"""What must hold for the built site: links lead somewhere, nothing is fetched from another host, no Markdown left."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself when it shows a page. A link that people follow may lead to another host.
_FETCHED = {("link", "href"), ("use", "href"), ("image", "href")}
_FETCHED_BY = ("src", "srcset", "poster", "data", "action", "background")
# Links of the frame that name where a page lies, without fetching it.
_NAMED_ONLY = {"canonical", "prev", "next", "license", "help"}
_OTHER_HOST = re.compile(r"^(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_STYLE_CALL = re.compile(r"(?:url\(|@import )\s*[\"']?((?:https?:)?//[^\"')\s]+)")
# Text that is still Markdown: a row of a table, an item of a list or a heading inside a paragraph, a bare link.
_LEFT_OVER = re.compile(r"(?:^|\n)\s*(?:\|[ :-]*-{3}|[-*] \w|\d+\. \w|#{2,} \w|```)|\]\(\S+\)")
_SKIPPED = {"script", "style", "code", "pre", "svg"}
_EMPTY = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class PageReader(HTMLParser):
    """One built page: what it links to, what it fetches, its anchors and its running text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        named_only = tag == "link" and values.get("rel") in _NAMED_ONLY
        for name, value in values.items():
            if (tag, name) in _FETCHED or name in _FETCHED_BY:
                if not named_only:
                    self.fetched += value.split(",") if name == "srcset" else [value]
            elif name == "href":
                self.links.append(value)
            elif name == "style":
                self.fetched += _STYLE_CALL.findall(value)
        if tag not in _EMPTY:
            self._open.append(tag)
        if tag == "p":
            self.text += "\n\n"

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            self.fetched += _STYLE_CALL.findall(data)
        if {"article", "p"} <= set(self._open) and not _SKIPPED & set(self._open):
            self.text += data


def site_findings(folder: Path) -> list[str]:
    """What is wrong with a built site, one line each."""
    pages = {path: PageReader(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}
    found: dict[str, list[str]] = defaultdict(list)
    for path, page in pages.items():
        wrong = [*_dead(path, pages, folder), *_foreign(page.fetched), *_left_over(page)]
        found[str(path.relative_to(folder))] += wrong
    for path in sorted(folder.rglob("*.css")):
        calls = _STYLE_CALL.findall(path.read_text(encoding="utf-8"))
        found[str(path.relative_to(folder))] += _foreign(calls)
    return [f"{name}: {line}" for name, lines in found.items() for line in lines]


def _dead(path: Path, pages: dict[Path, PageReader], folder: Path) -> Iterator[str]:
    for target in (*pages[path].links, *pages[path].fetched):
        parts = urlsplit(target)
        if parts.scheme or parts.netloc or not target:
            continue
        start = folder if parts.path.startswith("/") else path.parent
        there = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
        there = there / "index.html" if there.is_dir() else there
        if not there.exists():
            yield f"the link {target} leads nowhere"
        elif parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].anchors:
            yield f"the link {target} has no such heading"


def _foreign(fetched: list[str]) -> Iterator[str]:
    for target in fetched:
        if _OTHER_HOST.match(target.strip()):
            yield f"fetches {target} from another host"


def _left_over(page: PageReader) -> Iterator[str]:
    for found in _LEFT_OVER.finditer(page.text):
        around = page.text[max(0, found.start() - 20) : found.end() + 40]
        yield f"Markdown that was not understood: {' '.join(around.split())!r}"
