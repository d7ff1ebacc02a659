"""No two modules have the same file name, so that a name in a traceback or a search means one module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from checks.finding import Finding

# In each seam's folder: its contract and what a package is made of.
EVERYWHERE = {"__init__.py", "__main__.py", "base.py"}
# Backends keep the same contracts, so the parts of one are named like the parts of another.
BACKENDS = {"frontier/redis", "frontier/sqlite", "store/files", "store/postgres", "store/sqlite"}


def twin_modules(package: Path) -> Iterator[Finding]:
    """Modules outside the backends that are named like another one."""
    named: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        if path.name not in EVERYWHERE:
            named[path.name].append(path)
    for paths in named.values():
        others = [path for path in paths if path.parent.relative_to(package).as_posix() not in BACKENDS]
        for path in others if len(paths) > 1 else ():
            twin = next(other for other in paths if other != path).relative_to(package)
            yield Finding(path, 1, f"named like {twin}: give one of the two another name")
