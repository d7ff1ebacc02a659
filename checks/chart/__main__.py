"""`python -m checks.chart`: writes the plain manifests of the package anew, from its chart."""

from __future__ import annotations

import sys

from checks.chart.manifests import FOLDER, manifests
from checks.chart.rendering import missing_packages


def main() -> int:
    """Write them. Without Go those that are there stay."""
    if missing := missing_packages():
        sys.stderr.write(f"the manifests are not rendered anew, since {missing} is missing: see `make servers`\n")
        return 0
    for name, text in manifests():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
