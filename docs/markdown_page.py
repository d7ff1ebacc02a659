"""How a generated page is put together."""

from __future__ import annotations

from collections.abc import Iterable

NOTE = "<!-- Written by docs/generate.py. Do not edit. -->\n\n"


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; a | inside a cell is escaped."""
    head = list(columns)
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(parts: Iterable[str]) -> str:
    """Parts with an empty line between them."""
    return NOTE + "\n".join(f"\n{part}" for part in parts).lstrip("\n") + "\n"
