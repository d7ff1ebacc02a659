"""Renders a Helm chart by a small program of Go, which has the template language that Helm uses."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from checks.finding import ROOT

CHART = ROOT / "src" / "shoal" / "deploy" / "templates" / "helm" / "shoal"
SOURCE = ROOT / "checks" / "chart" / "render.go"
PROGRAM = Path(sys.prefix) / "chart" / "render"
# Where Debian puts the sources of Go's packages.
PACKAGES = Path("/usr/share/gocode")
NEEDED = {
    "golang-github-masterminds-sprig-dev": "github.com/Masterminds/sprig",
    "golang-k8s-sigs-yaml-dev": "sigs.k8s.io/yaml",
}


class Rendered(NamedTuple):
    """`files` by their names under templates/, `values` those of the chart with those that were given."""

    files: dict[str, str]
    values: dict[str, Any]


class ChartError(Exception):
    """The chart refuses its values, or cannot be rendered."""


def missing_packages() -> str:
    """The packages of Debian that are not installed and must be; empty if all is there."""
    found = [name for name, source in NEEDED.items() if not (PACKAGES / "src" / source).is_dir()]
    return " ".join([*([] if shutil.which("go") else ["golang-go"]), *found])


def render(values: Mapping[str, Any], *, release: str = "books", chart: Path = CHART) -> Rendered:
    """What Helm would send to a cluster for these values. Helm also checks them against values.schema.json first."""
    request = {"chart": str(chart), "release": release, "namespace": "default", "values": values}
    done = subprocess.run(  # noqa: S603 - our own program
        [str(_program())], input=json.dumps(request), capture_output=True, text=True, check=True
    )
    answer = json.loads(done.stdout)
    if "error" in answer:
        # Go says where first; what is wrong comes last.
        raise ChartError(re.sub(r"^.*error calling \w+: ", "", answer["error"], flags=re.DOTALL))
    return Rendered(files=dict(sorted(answer["files"].items())), values=answer["values"])


def _program() -> Path:
    """The program, built if it is older than its source. Several tests may build it at once."""
    if not PROGRAM.exists() or PROGRAM.stat().st_mtime < SOURCE.stat().st_mtime:
        PROGRAM.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=PROGRAM.parent) as folder:
            built = Path(folder) / "render"
            environ = os.environ | {"GO111MODULE": "off", "GOPATH": str(PACKAGES), "GOFLAGS": ""}
            command = [shutil.which("go") or "go", "build", "-o", str(built), str(SOURCE)]
            subprocess.run(command, env=environ, check=True)  # noqa: S603 - builds a file of this repository
            built.replace(PROGRAM)
    return PROGRAM
