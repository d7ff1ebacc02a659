"""What a case reached, for people: a table on the terminal, and RESULTS.md and chart.svg from all that is kept.

Each case's last full run is kept in results/LETTER.json, so that a run of one case renews its part alone.
`python -m bench.report` writes both files anew without measuring anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.case import Case, Figure
from bench.chart import chart
from bench.machine import PROGRAMS, Machine

HERE = Path(__file__).resolve().parent
OURS, SERVERS = "shoal and its libraries", "servers and programs"
# The peers' environments that cases use, and what people call them.
PEERS = {
    "scrapy": "Scrapy",
    "scrapy-redis": "scrapy-redis",
    "crawlee": "Crawlee for Python",
    "crawlee-node": "Crawlee for Node",
    "brpop": "BRPOP worker",
}
INTRODUCTION = """\
# Results

Written by `make bench`; [README.md](README.md) says what each case asks and how it is fair. Each system runs alone;
runs are interleaved and repeated: a figure is the median, with the lowest and the highest beside it. Ratios are within
one run on one machine.

![pages per second of each system, case by case](chart.svg)
"""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A case as it is kept: what was measured, when, where and with what."""

    case: Case
    date: str
    rounds: int
    machine: Machine
    versions: dict[str, str]


def save(record: Record, *, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    encoded = msgspec.json.format(msgspec.json.encode(record), indent=1)
    (folder / f"{record.case.letter}.json").write_bytes(encoded + b"\n")


def load(folder: Path) -> list[Record]:
    """Everything that is kept, by letter."""
    return [msgspec.json.decode(path.read_bytes(), type=Record) for path in sorted(folder.glob("*.json"))]


def write_documents(folder: Path) -> None:
    """RESULTS.md and chart.svg, from what is kept in the folder's results/."""
    records = load(folder / "results")
    (folder / "RESULTS.md").write_text(results_page(records), encoding="utf-8")
    (folder / "chart.svg").write_text(chart([record.case for record in records]), encoding="utf-8")


def terminal_report(case: Case) -> str:
    """The case's table, its figures and its notes, as plain text."""
    lines = ["", f"{case.letter}. {case.title}", *_aligned([case.columns, *case.rows])]
    lines += [f"  {_verdict(figure)}: {figure_text(figure)}" for figure in case.figures]
    return "\n".join(lines + [f"  note: {note}" for note in case.notes])


def results_page(records: list[Record]) -> str:
    """RESULTS.md: an overview of the figures, then each case with its table."""
    overview = [["", "case", "figures reached", "measured"]]
    for record in records:
        reached = sum(figure.is_reached for figure in record.case.figures)
        total = f"{reached} of {len(record.case.figures)}" if record.case.figures else "none asked"
        overview.append(
            [record.case.letter, f"[{record.case.title}](#{_anchor(_heading(record.case))})", total, record.date]
        )
    shared = _shared(records)
    sections = [_section(record, shared=shared) for record in records]
    parts = [INTRODUCTION, _markdown_table(overview, texts=4), _shared_section(shared), *sections]
    return "\n".join([*filter(None, parts), _versions_section(records)])


def _shared(records: list[Record]) -> dict[str, str]:
    """The sentences that several cases say of themselves, each with the letters of these cases."""
    said: dict[str, list[str]] = {}
    for record in records:
        for sentence in record.case.how:
            said.setdefault(sentence, []).append(record.case.letter)
    return {sentence: _listed(letters) for sentence, letters in said.items() if len(letters) > 1}


def _shared_section(shared: dict[str, str]) -> str:
    """What holds for several cases, said once."""
    parts = []
    for cases in dict.fromkeys(shared.values()):
        parts += [f"## In common: cases {cases}", ""]
        parts += [*[f"- {sentence}" for sentence, letters in shared.items() if letters == cases], ""]
    return "\n".join(parts)


def _section(record: Record, *, shared: dict[str, str]) -> str:
    case = record.case
    own = [sentence for sentence in case.how if sentence not in shared]
    common = dict.fromkeys(shared[sentence] for sentence in case.how if sentence in shared)
    links = [
        f"See also [what cases {cases} have in common](#{_anchor(f'In common: cases {cases}')})." for cases in common
    ]
    parts = [f"## {_heading(case)}", "", *[f"- {sentence}" for sentence in [*own, *links]], ""]
    parts.append(_markdown_table([case.columns, *case.rows]))
    if case.figures:
        rows = [[figure.what, _measured(figure), _wanted(figure), _explained(figure)] for figure in case.figures]
        parts.append(_markdown_table([["figure", "measured", "wanted", ""], *rows], texts=4))
    parts += [*[f"Note: {note}\n" for note in case.notes]]
    rounds = "1 round" if record.rounds == 1 else f"{record.rounds} rounds"
    parts.append(f"Measured on {record.date}, {rounds}: {record.machine}.\n")
    return "\n".join(parts)


def _versions_section(records: list[Record]) -> str:
    """The versions of all that took part; where they changed from case to case, a line for each."""
    found: dict[tuple[str, str], list[str]] = {}
    for record in records:
        for place, packages in _by_place(record).items():
            found.setdefault((place, ", ".join(packages)), []).append(record.case.letter)
    rows = [[place, packages, _listed(letters)] for (place, packages), letters in sorted(found.items(), key=_rank)]
    return "\n".join(["## Versions", "", _markdown_table([["", "versions", "cases"], *rows], texts=3)])


def _by_place(record: Record) -> dict[str, list[str]]:
    """Names with their versions, by who uses them; those of peers that the case's table does not name are left out."""
    found: dict[str, list[str]] = {}
    for name, version in record.versions.items():
        package, _, environment = name.partition(", for ")
        place = PEERS.get(environment, "") if environment else SERVERS if package in PROGRAMS else OURS
        if place in (OURS, SERVERS) or (place and any(row[0].startswith(place) for row in record.case.rows)):
            found.setdefault(place, []).append(f"{package} {version}")
    return found


def _rank(entry: tuple[tuple[str, str], list[str]]) -> tuple[int, list[str]]:
    (place, _), letters = entry
    return [OURS, SERVERS, *PEERS.values()].index(place), letters


def _listed(letters: Sequence[str]) -> str:
    return " and ".join([*filter(None, [", ".join(letters[:-1])]), letters[-1]])


def figure_text(figure: Figure) -> str:
    return f"{figure.what} {_measured(figure)}, wanted {_wanted(figure)}"


def _measured(figure: Figure) -> str:
    """Rounded away from what was wanted: what is shown as 20 has reached 20."""
    towards = math.floor if figure.sense == "at least" else math.ceil
    # What is a hair off is a matter of binary fractions, not of the measurement.
    return _with_unit(towards(round(figure.value * 100, 6)) / 100, figure.unit)


def _wanted(figure: Figure) -> str:
    return f"{figure.sense} {_with_unit(figure.wanted, figure.unit)}"


def _verdict(figure: Figure) -> str:
    return "reached" if figure.is_reached else "not reached"


def _explained(figure: Figure) -> str:
    """The verdict; where it is a bad one, with what bounds the figure."""
    bound = "" if figure.is_reached or not figure.bound_by else f": {figure.bound_by}"
    return f"{_verdict(figure)}{bound}"


def _with_unit(value: float, unit: str) -> str:
    return f"{value:,.2f}".removesuffix(".00") + f" {unit.strip()}".rstrip()


def _heading(case: Case) -> str:
    return f"{case.letter}. {case.title}"


def _anchor(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    kept = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in "-_ ")
    return kept.replace(" ", "-")


def _aligned(rows: list[list[str]]) -> list[str]:
    """Columns of one width each, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join(["", first.ljust(widths[0]), *cells]).rstrip())
    return lines


def _markdown_table(rows: list[list[str]], *, texts: int = 1) -> str:
    """The first columns are texts, to the left; the others are numbers, to the right."""
    head, *body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    ruler = ["---" if number < texts else "---:" for number, _ in enumerate(head)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ruler, *body))


if __name__ == "__main__":
    write_documents(HERE)
