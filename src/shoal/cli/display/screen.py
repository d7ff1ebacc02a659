"""Output for people: rich on a terminal, plain lines in a pipe. Results on stdout, messages on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.cli.display.lines import one_line, shown

if TYPE_CHECKING:
    from rich.live import Live

GAP = 2
FOLDED = 20
NOTHING = frozenset({"", "0", "0.00"})


class Screen:
    """The output of a command. results_to_stderr: keep stdout for the items."""

    def __init__(self, *, results_to_stderr: bool = False) -> None:
        self.err = _console(sys.stderr)
        self.out = self.err if results_to_stderr else _console(sys.stdout)

    def say(self, line: str) -> None:
        """One message."""
        self.err.print(Text(shown(line)), soft_wrap=True)

    def line(self, text: str = "", *, style: str = "") -> None:
        """One line of the result."""
        self.out.print(Text(shown(text), style=style), soft_wrap=True)

    def heading(self, text: str) -> None:
        self.line(text, style="bold")

    def json(self, value: Any) -> None:
        """A result for scripts, on one line."""
        from shoal.results.export import harmless

        sys.stdout.write(harmless(msgspec.json.encode(value)).decode() + "\n")

    @contextmanager
    def live(self, **options: Any) -> Iterator[Live | None]:
        """A display that is redrawn in place and removed at the end; None without a terminal."""
        from rich.live import Live

        if not self.err.is_terminal:
            yield None
            return
        with Live(console=self.err, transient=True, **options) as picture:
            yield picture

    def pairs(self, rows: Iterable[tuple[str, Any]], *, indent: str = "  ") -> None:
        """Names and their values, in two columns."""
        known = [(name, shown(value)) for name, value in rows]
        width = max((len(name) for name, _ in known), default=0)
        for name, value in known:
            # Further lines of a value are indented like the first one.
            value = value.replace("\n", "\n" + indent + " " * (width + 2))
            text = Text(indent).append(name.ljust(width), style="dim").append(f"  {value}")
            self.out.print(text, soft_wrap=True)

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        *,
        right: Iterable[str] = (),
        spare: Sequence[str] = (),
        folds: Sequence[str] = (),
        whole: Sequence[str] = (),
    ) -> None:
        """A table. On a narrow terminal the columns in `folds` are folded first, then those in `spare` left out.

        right: columns of numbers. whole: like numbers, never folded."""
        cells = [[one_line(cell) for cell in row] for row in rows]
        if self.out.is_terminal and spare:
            columns, cells = self._fitting(columns, cells, spare, folds)
        numbers = [column in set(right) for column in columns]
        if self.out.is_terminal:
            self.out.print(rich_table(columns, cells, numbers=numbers, width=self.out.width, whole=whole))
            return
        widths = _widths(columns, cells)
        for row in [columns, *cells]:
            padded = (
                cell.rjust(width) if number else cell.ljust(width)
                for cell, width, number in zip(row, widths, numbers, strict=True)
            )
            self.out.file.write("  ".join(padded).rstrip() + "\n")

    def _fitting(
        self, columns: Sequence[str], cells: list[list[str]], spare: Sequence[str], folds: Sequence[str]
    ) -> tuple[Sequence[str], list[list[str]]]:
        """The columns that fit, and their cells; a message names the columns left out."""
        fit = fitting(columns, cells, width=self.out.width, spare=spare, folds=folds)
        kept = [index for index, name in enumerate(columns) if name in fit]
        if left_out := [name for name in columns if name not in fit and name not in _empty(columns, cells)]:
            self.say(f"no room for {', '.join(left_out)}: a wider terminal, a pipe or --json shows them")
        return [columns[index] for index in kept], [[row[index] for index in kept] for row in cells]


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise instead of exiting: `shoal.cli.main` decides the return code."""
        raise BrokenPipeError


def _console(file: Any, *, environ: Mapping[str, str] = os.environ) -> Console:
    """Rich on a capable terminal, else plain. NO_COLOR wins over FORCE_COLOR."""
    is_terminal = file.isatty() and environ.get("TERM", "") not in ("dumb", "unknown")
    colours: Literal["auto", "standard"] | None = "auto" if is_terminal else None
    if environ.get("FORCE_COLOR") and not is_terminal:
        colours = "standard"
    if environ.get("NO_COLOR"):
        colours = None
    # Set explicitly: rich would treat a pipe as a terminal if FORCE_COLOR is set.
    return _Console(
        file=file, force_terminal=is_terminal, color_system=colours, highlight=False, markup=False, emoji=False
    )


def fitting(
    columns: Sequence[str], cells: Sequence[Sequence[str]], *, width: int, spare: Sequence[str], folds: Sequence[str]
) -> list[str]:
    """The columns that fit into a width. Empty `spare` columns are left out first."""
    empty = _empty(columns, cells)
    widths = dict(zip(columns, _widths(columns, cells), strict=True))
    for name in folds:
        widths[name] = min(widths[name], FOLDED)
    for name in sorted((name for name in spare if name in widths), key=lambda name: name not in empty):
        if sum(widths.values()) + GAP * (len(widths) - 1) > width:
            del widths[name]
    return list(widths)


def _empty(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> set[str]:
    return {name for index, name in enumerate(columns) if all(row[index] in NOTHING for row in cells)}


def _widths(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(columns, *cells, strict=True)]


def rich_table(
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    *,
    numbers: Sequence[bool],
    width: int,
    whole: Sequence[str] = (),
) -> Table:
    """A table for a terminal of this width. Long text is folded first; numbers and the columns in `whole` never."""
    table = Table(box=None, padding=(0, GAP, 0, 0), header_style="dim", pad_edge=False)
    widths = _widths(columns, cells)
    has_room = sum(min(wide, FOLDED) for wide in widths) + GAP * (len(widths) - 1) <= width
    for name, wide, is_number in zip(columns, widths, numbers, strict=True):
        if is_number or name in whole or (has_room and wide <= FOLDED):
            table.add_column(name, justify="right" if is_number else "left", no_wrap=True, min_width=wide)
        else:
            table.add_column(name, overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    return table
