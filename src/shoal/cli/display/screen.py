"""Output for people: rich on a terminal, plain lines in a pipe. Results on stdout, messages on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.cli.display.lines import one_line, shown

if TYPE_CHECKING:
    from rich.live import Live

GAP = 2
NOTHING = frozenset({"", "0", "0.00"})


class Screen:
    """Where a command writes. `results_to_stderr` leaves stdout to the items."""

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
        """A display that is redrawn in place and removed at the end; None where there is no terminal."""
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
            # The further lines of a value are indented like its first one.
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
    ) -> None:
        """A table; the columns named in `right` hold numbers. The columns in `spare` are left out one by one where a
        terminal is too narrow for all."""
        cells = [[one_line(cell) for cell in row] for row in rows]
        if self.out.is_terminal and spare:
            columns, cells = self._fitting(columns, cells, spare)
        numbers = [column in set(right) for column in columns]
        if self.out.is_terminal:
            self.out.print(_rich_table(columns, cells, numbers))
            return
        widths = _widths(columns, cells)
        for row in [columns, *cells]:
            padded = (
                cell.rjust(width) if number else cell.ljust(width)
                for cell, width, number in zip(row, widths, numbers, strict=True)
            )
            self.out.file.write("  ".join(padded).rstrip() + "\n")

    def _fitting(
        self, columns: Sequence[str], cells: list[list[str]], spare: Sequence[str]
    ) -> tuple[Sequence[str], list[list[str]]]:
        """The columns that fit, and their cells. Empty columns are left out first, and without a message."""
        empty = {name for index, name in enumerate(columns) if all(row[index] in NOTHING for row in cells)}
        widths = dict(zip(columns, _widths(columns, cells), strict=True))
        for name in sorted(spare, key=lambda name: name not in empty):
            if sum(widths.values()) + GAP * (len(widths) - 1) > self.out.width:
                del widths[name]
        if left_out := [name for name in columns if name not in widths and name not in empty]:
            self.say(f"no room for {', '.join(left_out)}: a wider terminal, a pipe or --json shows them")
        kept = [index for index, name in enumerate(columns) if name in widths]
        return [columns[index] for index in kept], [[row[index] for index in kept] for row in cells]


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise, where rich would exit: `shoal.cli.main` decides the exit code."""
        raise BrokenPipeError


def _console(file: Any) -> Console:
    return _Console(file=file, highlight=False, markup=False, emoji=False)


def _widths(columns: Sequence[str], cells: list[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(columns, *cells, strict=True)]


def _rich_table(columns: Sequence[str], cells: list[list[str]], numbers: Sequence[bool]) -> Table:
    table = Table(box=None, padding=(0, GAP, 0, 0), header_style="dim", pad_edge=False)
    for name, is_number in zip(columns, numbers, strict=True):
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    return table
