"""No function is longer than a screen."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from checks.finding import Finding

LONGEST = 60


def long_functions(files: Iterable[Path]) -> Iterator[Finding]:
    """Functions of more than `LONGEST` lines, from `def` to their last line."""
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > LONGEST:
                    text = f"{node.name} has {lines} lines: split it, {LONGEST} are the most"
                    yield Finding(path, node.lineno, text)
