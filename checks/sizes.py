"""Lines and files of the product per folder, beside the budget in `checks/budget.toml`: growth is a decision.

A folder over its budget is a finding. Who means it raises the number in the same commit and says there what it buys;
who removes code lowers it: `python -m checks.sizes --renew` writes down what there is."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from checks.finding import ROOT, Finding

PACKAGE = ROOT / "src" / "shoal"
BUDGET = ROOT / "checks" / "budget.toml"
TESTS, LUA = "tests", "lua"


class Size(NamedTuple):
    """Lines of code with their comments, and files."""

    lines: int
    files: int


def sizes() -> dict[str, Size]:
    """The size of each folder of the package, of all Lua, and of the tests."""
    found = {folder.name: _size(folder.rglob("*.py")) for folder in sorted(PACKAGE.iterdir()) if _has_python(folder)}
    found["top"] = _size(PACKAGE.glob("*.py"))
    found[LUA] = _size(PACKAGE.rglob("*.lua"))
    found[TESTS] = _size((ROOT / "tests").rglob("*.py"))
    return found


def product(found: dict[str, Size]) -> Size:
    """All Python that users get, without `shoal.testing`."""
    counted = [size for name, size in found.items() if name not in (TESTS, LUA, "testing")]
    return Size(sum(size.lines for size in counted), sum(size.files for size in counted))


def over_budget() -> Iterator[Finding]:
    """One finding per folder that is larger than its budget, or has none."""
    budget = tomllib.loads(BUDGET.read_text(encoding="utf-8"))
    found = sizes()
    for name, size in {**found, "product": product(found)}.items():
        most = Size(**budget.get(name, {"lines": 0, "files": 0}))
        if size.lines > most.lines or size.files > most.files:
            yield Finding(
                BUDGET,
                1,
                f"{name} has {size.lines:,} lines in {size.files} files, its budget is {most.lines:,} in {most.files}:"
                " make it smaller, or raise the budget in the commit that says why",
            )


def table() -> str:
    """The sizes beside the budget, a line per folder."""
    budget = tomllib.loads(BUDGET.read_text(encoding="utf-8"))
    found = sizes()
    rows = []
    for name, size in [*sorted(found.items()), ("product", product(found))]:
        most = Size(**budget.get(name, {"lines": 0, "files": 0}))
        rows.append(f"{name:10} {size.lines:7,} of {most.lines:7,} lines {size.files:5} of {most.files:4} files")
    return "\n".join(rows)


def renew() -> None:
    """Write the sizes of now as the budget."""
    found = sizes()
    lines = ["# Most lines and files per folder of src/shoal, of all Lua and of tests/: see checks/sizes.py."]
    for name, size in [*sorted(found.items()), ("product", product(found))]:
        lines.append(f"{name} = {{ lines = {size.lines}, files = {size.files} }}")
    BUDGET.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _has_python(folder: Path) -> bool:
    return folder.is_dir() and any(folder.glob("*.py"))


def _size(paths: Iterator[Path]) -> Size:
    lengths = [len(path.read_text(encoding="utf-8").splitlines()) for path in paths if "__pycache__" not in path.parts]
    return Size(sum(lengths), len(lengths))


if __name__ == "__main__":
    if sys.argv[1:] == ["--renew"]:
        renew()
    sys.stdout.write(f"{table()}\n")
