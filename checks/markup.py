"""The page makes elements in one module only, and never out of text: what is scraped must not become markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from checks.finding import Finding

# The module that makes elements.
MAKER = "dom.js"
# Ways by which text becomes markup, code or a style, whoever calls them.
_NEVER = re.compile(
    r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write(?:ln)?|DOMParser|createContextualFragment|setHTMLUnsafe"
    r"|setHTML|srcdoc|eval|new Function|cssText)\b|javascript:"
)
_MAKING = re.compile(r"\b(createElement(?:NS)?)\b|\.(href|src|action|formAction)\s*=(?!=)")
_INLINE = re.compile(r"<script(?![^>]*\bsrc=)|<style\b|\sstyle\s*=|\son\w+\s*=", re.IGNORECASE)
_REMOTE = re.compile(r"""(?:src|href|url\(|from|import)\s*[=(]?\s*["']?(?:https?:)?//""", re.IGNORECASE)


def unsafe_page_code(folder: Path) -> Iterator[Finding]:
    """Calls and attributes by which scraped text or another site could get into the page."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".js", ".html", ".css"):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                yield from _of_line(path, number, line)


def _of_line(path: Path, number: int, line: str) -> Iterator[Finding]:
    if found := _NEVER.search(line):
        yield Finding(path, number, f"{found[0]} lets text become markup or code: use h() and fill() of {MAKER}")
    if path.suffix == ".js" and path.name != MAKER and (found := _MAKING.search(line)):
        yield Finding(path, number, f"{found[0].strip()} belongs into {MAKER}, which knows what is safe: use h()")
    if path.suffix == ".html" and (found := _INLINE.search(line)):
        yield Finding(path, number, f"{found[0].strip()} is inline, which the page's own policy refuses: use a file")
    if found := _REMOTE.search(line):
        yield Finding(path, number, f"{found[0].strip()} is fetched from elsewhere: the page has only files of its own")
