"""`python -m checks`: every check over this repository, one line per finding."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from checks.cycles import import_cycles
from checks.finding import ROOT, Finding
from checks.lengths import long_functions
from checks.markup import unsafe_page_code
from checks.module_names import twin_modules
from checks.words import documents, glossary_rules, printed_texts, wrong_words

PYTHON_FOLDERS = ("src", "tests", "bench", "checks", "release", "docs", "examples")


PACKAGE = ROOT / "src" / "shoal"


def findings() -> Iterator[Finding]:
    """What all checks find."""
    _check_installation()
    yield from import_cycles("shoal")
    yield from long_functions(_python_files())
    yield from twin_modules(PACKAGE)
    yield from unsafe_page_code(PACKAGE / "serve" / "static")
    rules = glossary_rules((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    yield from wrong_words(rules, documents([ROOT / "README.md", *_files("docs", "*.md")]))
    yield from wrong_words(rules, printed_texts(_files("src/shoal", "*.py")))


def _check_installation() -> None:
    """The check of imports reads the installed package: it must be the one of this checkout."""
    spec = importlib.util.find_spec("shoal")
    if spec is None or spec.origin is None or not Path(spec.origin).is_relative_to(PACKAGE):
        raise SystemExit(f"checks: the installed shoal is not the one in {PACKAGE}: run `make dev` in this checkout")


def _files(folder: str, pattern: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob(pattern))
    # A folder that was moved must not make its check pass.
    return found or sys.exit(f"checks: there is no {pattern} in {folder}: name the folder that holds them now")


def _python_files() -> Iterator[Path]:
    for folder in PYTHON_FOLDERS:
        for path in sorted((ROOT / folder).iterdir()):
            # Folders like bench/.work hold other people's code.
            if not path.name.startswith("."):
                yield from sorted(path.rglob("*.py")) if path.is_dir() else [path] * (path.suffix == ".py")


def main() -> int:
    """Print the findings; the exit code says whether there were any."""
    found = list(findings())
    for finding in found:
        sys.stdout.write(f"{finding}\n")
    sys.stdout.write(f"checks: {len(found)} to change\n" if found else "checks: nothing to change\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
