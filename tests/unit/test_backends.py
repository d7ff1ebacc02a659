"""The list of every kind of URL: what it names exists, and opening goes by it."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from docs_pages import ROOT
from shoal.backends import BACKENDS, Backend, backend_of, load, schemes_of
from shoal.sinks.urls import KINDS
from shoal.version import install_command


def name_of(backend: Backend) -> str:
    return f"{backend.seam} {backend.name}"


@pytest.mark.parametrize("backend", BACKENDS, ids=name_of)
def test_a_backend_can_be_loaded_and_its_extra_exists(backend: Backend) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert load(backend).__name__ == backend.loads.partition(":")[2]
    assert not backend.extra or backend.extra in extras
    assert bool(backend.drivers) == bool(backend.extra)


@pytest.mark.parametrize("backend", [one for one in BACKENDS if one.extra], ids=name_of)
def test_a_missing_driver_is_one_line_with_the_command_that_installs_it(backend: Backend) -> None:
    # In a process of its own: what was imported before would be found again.
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({backend.drivers!r}))\n"
        "from shoal.backends import BACKENDS, load\n"
        f"load(BACKENDS[{BACKENDS.index(backend)}])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    refusal = done.stderr.splitlines()[-1]
    assert refusal.startswith("shoal.errors.UsageError: ")
    assert refusal.endswith(install_command(backend.extra))


def test_a_scheme_names_one_backend_of_a_seam() -> None:
    for seam in ("frontier", "store", "archive", "sink", "pipe"):
        schemes = schemes_of(seam)
        assert len(schemes) == len(set(schemes)) > 0
        assert all(backend_of(seam, scheme) is not None for scheme in schemes)
    assert set(KINDS) == set(schemes_of("sink"))
