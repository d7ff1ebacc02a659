"""Renders a Helm chart by Helm itself, whose program comes with the package helm-binary."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checks.finding import ROOT
from shoal.version import __version__

CHART = ROOT / "src" / "shoal" / "deploy" / "templates" / "helm" / "shoal"
_SOURCE = re.compile(r"^---\n# Source: [^/\n]+/templates/(.+)\n", re.MULTILINE)


class ChartError(Exception):
    """The chart refuses its values, or cannot be rendered."""


def helm_program() -> str:
    """The path of Helm; empty if it is not installed."""
    return shutil.which("helm", path=str(Path(sys.executable).parent)) or ""


def render(
    values: Mapping[str, Any], *, release: str = "books", chart: Path = CHART, are_checked: bool = True
) -> dict[str, str]:
    """What Helm would send to a cluster for these values, by the names of the files under templates/. `are_checked`:
    against values.schema.json first, as Helm does."""
    flags = ["--namespace", "default", "--values", "-", *([] if are_checked else ["--skip-schema-validation"])]
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(chart, Path(folder) / "chart")
        # The chart of the package has a mark there, which `shoal deploy k8s` fills in.
        about = copy / "Chart.yaml"
        about.write_text(about.read_text().replace("@version@", __version__))
        done = subprocess.run(  # noqa: S603 - Helm itself
            [helm_program(), "template", release, str(copy), *flags],
            input=json.dumps(values),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise ChartError(done.stderr.strip())
    files: dict[str, str] = {}
    _, *parts = _SOURCE.split(done.stdout)
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        files[name] = f"{files.get(name, '')}---\n{text}"
    return dict(sorted(files.items()))
