"""`python -m checks.chart`: writes the plain manifests of the package anew, from its chart."""

from __future__ import annotations

import sys

from checks.chart.manifests import FOLDER, manifests
from checks.chart.rendering import helm_program


def main() -> int:
    """Write them. Without Helm those that are there stay."""
    if not helm_program():
        sys.stderr.write("the manifests are not rendered anew: there is no Helm for this machine in helm-binary\n")
        return 0
    for name, text in manifests():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
