"""No module of the package imports itself by way of others, not even inside a function.

Imports under `if TYPE_CHECKING:` are left out: they never run.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

from checks.finding import Finding


def import_cycles(package: str) -> Iterator[Finding]:
    """One finding per cycle of imports."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    while cycle := _cycle(imports):
        importer, imported = cycle[0], cycle[1]
        # Without this import the next round finds another cycle, if there is one.
        imports[importer].discard(imported)
        details = graph.get_import_details(importer=importer, imported=imported)
        yield Finding(
            _file(importer),
            details[0]["line_number"],
            f"import cycle {' → '.join(cycle)}: move what they share into a module that all of them import",
        )


def _cycle(imports: dict[str, set[str]]) -> list[str]:
    """Modules each of which imports the next, the first one again at the end; empty if there are none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        # The sorter names an imported module before its importer.
        return found[::-1]
    return []


def _file(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    return Path(spec.origin) if spec and spec.origin else Path(module)
