"""The pages of the site, collected from the repository: where each lies, and its text as the site's builder reads it.

Documents link to each other by their paths in the repository, so that they work wherever the repository is shown. On
the site they lie elsewhere; their links are written anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
OVERVIEW = "README.md"
FRONT = "docs/README.md"
HOME = "index.md"
# The front page has the whole width.
ALONE = "---\nhide: [navigation, toc]\n---\n"
PROJECT = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE")
EXAMPLES = "examples.md"
# Documents and the files that they show or link to. Generators and their settings are not for readers.
PATTERNS = ("docs/**/*.md", "docs/images/*", "docs/reference/*.json", "docs/site.css", "bench/*.md", "bench/*.svg")
# Beside the files of a deployment lie its passwords: `make docs` writes them anew just before it builds the site.
SECRET = {"secrets", ".env"}
FENCE = re.compile(r"^( *)(```+)(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
_FENCE_HEAD = re.compile(r"^( *```+)(\w+) +([\w./-]+) *$", re.MULTILINE)
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_ITEM = re.compile(r"^(?:[-*]|\d+\.) ")


def sources() -> list[str]:
    """What the site is made of, as paths in the repository."""
    found = {path.relative_to(ROOT).as_posix() for pattern in PATTERNS for path in ROOT.glob(pattern)}
    return sorted(found | {f"deploy/{name}" for name in deployed(ROOT / "deploy")} | {OVERVIEW, *PROJECT})


def deployed(folder: Path) -> list[str]:
    """The files of a deployment that anybody may see."""
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return sorted(path.as_posix() for path in files if not SECRET & set(path.parts))


def place(source: str) -> str:
    """Where a file of the repository lies on the site."""
    if source == OVERVIEW:
        return "overview.md"
    if source == FRONT:
        return HOME
    if source in PROJECT:
        return f"project/{source}"
    if source.rstrip("/") == "examples":
        return EXAMPLES
    return source.removeprefix("docs/")


def page(source: str) -> str:
    """A document as the site's builder reads it."""
    text = (ROOT / source).read_text(encoding="utf-8")
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [_prose(text[end : fence.start()], source), _FENCE_HEAD.sub(r'\1\2 title="\3"', fence[0])]
        end = fence.end()
    return (ALONE if source == FRONT else "") + "".join([*parts, _prose(text[end:], source)])


def examples_page() -> str:
    """The example spiders, whole."""
    parts = ["# Examples", "Spiders that run in shoal's tests."]
    for path in sorted((ROOT / "examples").glob("*.py")):
        parts.append(f'## {path.stem}\n\n```python title="{path.name}"\n{path.read_text(encoding="utf-8")}```')
    return "\n\n".join(parts) + "\n"


def _prose(text: str, source: str) -> str:
    return _spaced_lists(_LINK.sub(lambda link: f"{link[1]}{_relinked(link[2], source)}{link[3]}", text))


def _relinked(target: str, source: str) -> str:
    """A link of a document, from where it lies on the site."""
    file, mark, anchor = target.partition("#")
    if "://" in target or not file:
        return target
    there = os.path.normpath(os.path.join(os.path.dirname(source), file))
    if (ROOT / there).is_dir() and there not in {"examples", "."}:
        there += "/README.md"
    return os.path.relpath(place(there), os.path.dirname(place(source)) or ".") + mark + anchor


def _spaced_lists(text: str) -> str:
    """An empty line before each list, and four columns of indent inside: the builder's Markdown wants both."""
    lines: list[str] = []
    in_list = is_indented = False
    for line in text.split("\n"):
        is_item = bool(_ITEM.match(line))
        if not lines or not lines[-1].strip():
            is_indented = line.startswith(" ")
        # After a second paragraph of an item, too: the builder would take the next item for a line of it.
        if is_item and (is_indented or not in_list) and lines and lines[-1].strip():
            lines.append("")
            is_indented = False
        in_list = is_item or (in_list and (not line.strip() or line.startswith(" ")))
        lines.append(re.sub(r"^( {2,3})(?=\S)", "    ", line) if in_list and not is_item else line)
    return "\n".join(lines)


def navigation() -> list[dict[str, object]]:
    """The order of the pages: that of docs/README.md, section by section."""
    listed = (ROOT / FRONT).read_text(encoding="utf-8")
    tree: list[dict[str, object]] = [{"Home": HOME}]
    for section, text in _sections(listed, "## "):
        inner: list[object] = []
        for group, rows in _sections(text, "### "):
            entries = [entry for title, target in _links(rows) for entry in _entries(title, target)]
            inner += [{group: entries}] if group else entries
        tree.append({section or "Start": inner})
    return tree


def _sections(text: str, mark: str) -> Iterator[tuple[str, str]]:
    """Parts of a text between headings of one level; what stands before the first heading has no name."""
    first, *others = re.split(rf"^{mark}(.+)\n", text, flags=re.MULTILINE)
    if _links(first):
        yield "", first
    yield from zip(others[::2], others[1::2], strict=True)


def _links(text: str) -> list[tuple[str, str]]:
    found = re.findall(r"\[([^\]]+)\]\(([^)\s#]+)\)", text)
    return [(" ".join(title.replace("`", "").split()), target) for title, target in found if "://" not in target]


def _entries(title: str, target: str) -> Iterator[dict[str, object]]:
    lying = place(os.path.normpath(os.path.join("docs", target)))
    if lying == "decisions/README.md":
        yield {title: [lying, *(f"decisions/{path.name}" for path in _decisions())]}
    elif PurePosixPath(lying).suffix == ".md" and lying != HOME:
        yield {title: lying}


def _decisions() -> list[Path]:
    return sorted((ROOT / "docs" / "decisions").glob("0*.md"))
