"""`python -m checks`: every check over this repository, one line per finding."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from checks.cycles import import_cycles
from checks.finding import ROOT, Finding
from checks.markup import unsafe_page_code
from checks.sizes import over_budget, table

PACKAGE = ROOT / "src" / "shoal"


def findings() -> Iterator[Finding]:
    """What all checks find."""
    _check_installation()
    yield from import_cycles("shoal")
    yield from unsafe_page_code(PACKAGE / "serve" / "static")
    yield from over_budget()


def _check_installation() -> None:
    """The check of imports reads the installed package: it must be the one of this checkout."""
    spec = importlib.util.find_spec("shoal")
    if spec is None or spec.origin is None or not Path(spec.origin).is_relative_to(PACKAGE):
        raise SystemExit(f"checks: the installed shoal is not the one in {PACKAGE}: run `make dev` in this checkout")


def main() -> int:
    """Print the sizes and the findings; the return code says whether there were any."""
    sys.stdout.write(f"{table()}\n")
    found = list(findings())
    for finding in found:
        sys.stdout.write(f"{finding}\n")
    sys.stdout.write(f"checks: {len(found)} to change\n" if found else "checks: nothing to change\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
