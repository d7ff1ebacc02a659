"""The glossary's words are the only ones for their ideas, in documents and in what commands print.

The glossary in ARCHITECTURE.md has a column "not": words that must not be used for that idea. A word is listed there
only if no document needs it for something else.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from checks.finding import Finding

_GLOSSARY = re.compile(r"^## Glossary\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r'"([^"]+)"')

# A file, the words in it that are right there, and the reason.
EXCEPTIONS: Mapping[tuple[str, str], str] = {
    ("docs/how-to/kubernetes.md", "`Job`"): "the kind of an object of Kubernetes",
}

# Pages whose tables name other people's words in their first column, to say what they are here.
FOREIGN_FIRST = ("docs/explanation/words.md",)
_FIRST_CELL = re.compile(r"^\|[^|\n]*\|", re.MULTILINE)


class Rule(NamedTuple):
    """A word that the glossary rules out, and what to write instead."""

    pattern: re.Pattern[str]
    instead: str


def glossary_rules(document: str) -> list[Rule]:
    """The rules of the glossary's table: `| word | meaning | not |`."""
    table = _GLOSSARY.search(document)
    rows = [line.strip("|").split("|") for line in table[1].splitlines() if line.startswith("|")] if table else []
    if len(rows) < 3 or [cell.strip() for cell in rows[0]] != ["word", "meaning", "not"]:
        raise SystemExit("ARCHITECTURE.md: the glossary needs a table with the columns word, meaning, not")
    words: dict[str, list[str]] = defaultdict(list)
    for word, _, others in rows[2:]:
        for other in _QUOTED.findall(others):
            words[other].append(f'"{word.strip()}"')
    return [
        Rule(re.compile(rf"\b{re.escape(other)}\b".replace(r"\ ", r"\s+"), re.IGNORECASE), " or ".join(right))
        for other, right in words.items()
    ]


def wrong_words(
    rules: list[Rule], texts: Iterable[tuple[Path, int, str]], exceptions: Mapping[tuple[str, str], str] = EXCEPTIONS
) -> Iterator[Finding]:
    """Findings in texts, each given as its file, its line number and one or more lines."""
    for path, first, text in texts:
        checked = text
        if path.as_posix().endswith(FOREIGN_FIRST):
            checked = _FIRST_CELL.sub(lambda cell: "·" * len(cell[0]), checked)
        for words in (words for name, words in exceptions if path.as_posix().endswith(name)):
            checked = checked.replace(words, "·" * len(words))
        for rule in rules:
            for found in rule.pattern.finditer(checked):
                line = first + text.count("\n", 0, found.start())
                wrong = " ".join(found[0].split())
                yield Finding(path, line, f'"{wrong}" is not the glossary\'s word: write {rule.instead}')


def documents(files: Iterable[Path]) -> Iterator[tuple[Path, int, str]]:
    """Markdown files, code blocks included: they show what commands print."""
    for path in files:
        yield path, 1, path.read_text(encoding="utf-8")


def printed_texts(files: Iterable[Path]) -> Iterator[tuple[Path, int, str]]:
    """String literals of Python files. Of docstrings only those of decorated functions: click shows them as help."""
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        skipped = {id(node) for node in _docstrings(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
                yield path, node.lineno, node.value


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            is_help = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and bool(node.decorator_list)
            if not is_help and isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value
