"""The documents as tests see them: their fenced blocks, the marks of blocks that are not run, and their command lines.

A block that no test runs has a mark in front of it, in the page's source alone: `<!-- not run: WHY -->`, or
`<!-- run by: FILE -->` where a test of its own does it.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")])
GENERATED = "<!-- Written by docs/generate.py."

FENCE = re.compile(
    r"^( *)(?:<!-- (not run|run by): (.+?) -->\n\n?\1)?```(\w*)(?: +(\S+))?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL
)
MARK = re.compile(r"^ *<!-- (?:not run|run by): .+ -->\n\n?", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: its language, the file it is meant to be, its text, and what its mark says."""

    language: str
    name: str
    text: str
    mark: str = ""
    why: str = ""

    @property
    def is_spider(self) -> bool:
        """Whether it is a spider of shoal's that can be run as it is."""
        return self.language == "python" and "(Spider):" in self.text and "from shoal import" in self.text


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = FENCE.findall(path.read_text(encoding="utf-8"))
    return [Block(language, name, textwrap.dedent(text), mark, why) for _, mark, why, language, name, text in found]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def is_generated(path: Path) -> bool:
    return path.read_text(encoding="utf-8").startswith(GENERATED)


def command_lines(block: Block) -> Iterator[str]:
    """The lines of a block that people type."""
    if block.language == "sh":
        yield from (line for line in block.text.splitlines() if line.strip() and not line.strip().startswith("#"))
    elif block.language == "console":
        yield from (line[2:] for line in block.text.splitlines() if line.startswith("$ "))


def shoal_words(line: str) -> Iterator[list[str]]:
    """The arguments of each call of shoal in a line of a shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words = list(lexer)
    for start, word in enumerate(words):
        if word == "shoal" and (start == 0 or set(words[start - 1]) <= set("|&;")):
            rest = words[start + 1 :]
            end = next((number for number, other in enumerate(rest) if set(other) <= set("|&;<>")), len(rest))
            yield rest[:end]
