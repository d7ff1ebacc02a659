"""`python -m checks`: every check over this repository, one line per finding."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from checks.cycles import import_cycles
from checks.finding import ROOT, Finding
from checks.lengths import long_functions
from checks.module_names import twin_modules
from checks.words import documents, glossary_rules, printed_texts, wrong_words

PYTHON_FOLDERS = ("src", "tests", "bench", "checks", "docs", "examples")


def findings() -> Iterator[Finding]:
    """What all checks find."""
    yield from import_cycles("shoal")
    yield from long_functions(_python_files())
    yield from twin_modules(ROOT / "src" / "shoal")
    rules = glossary_rules((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    yield from wrong_words(rules, documents([ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]))
    yield from wrong_words(rules, printed_texts(sorted((ROOT / "src" / "shoal" / "cli").rglob("*.py"))))


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
