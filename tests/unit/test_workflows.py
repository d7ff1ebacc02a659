"""The workflows of GitHub, which cannot run here: held against their schema, a linter, and what they call."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
SECONDS = 60
UNSAFE = """
name: unsafe
on: pull_request_target
jobs:
  one:
    runs-on: ubuntu-24.04
    steps:
      - run: echo "${{ github.event.pull_request.title }}"
"""


def zizmor(*paths: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("zizmor")
    words = [str(program), "--offline", "--no-progress", "--quiet", "--format=plain", *map(str, paths)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=SECONDS)


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in jobs(path).values() for step in job["steps"]]


def test_the_workflows_are_there() -> None:
    assert [path.stem for path in WORKFLOWS] == ["release", "test"]


def test_the_linter_finds_nothing_unsafe_in_them() -> None:
    result = zizmor(*WORKFLOWS)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_linter_finds_what_is_unsafe(tmp_path: Path) -> None:
    (tmp_path / ".github" / "workflows").mkdir(parents=True)
    unsafe = tmp_path / ".github" / "workflows" / "unsafe.yml"
    unsafe.write_text(UNSAFE)
    result = zizmor(unsafe)
    assert result.returncode != 0
    assert "template-injection" in result.stdout


def test_they_keep_the_schema_of_workflows() -> None:
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    result = subprocess.run(
        [*words, *map(str, WORKFLOWS)], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_action_is_pinned_to_one_commit_with_its_version() -> None:
    lines = [line for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line]
    pins = [re.fullmatch(r" +- uses: ([\w./-]+)@([0-9a-f]{40}) # v(\d+\.\d+\.\d+)", line) for line in lines]
    assert pins
    assert [line for line, pin in zip(lines, pins, strict=True) if pin is None] == []
    commits = {(pin[1], pin[2], pin[3]) for pin in pins if pin}
    assert len({action for action, _, _ in commits}) == len(commits)


def test_they_call_targets_of_make_that_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    run = [step["run"] for path in WORKFLOWS for step in steps(path) if "run" in step]
    called = [re.fullmatch(r'(?:sudo )?make ([\w-]+)(?: [A-Z]+="\$\w+")*', line) for line in run]
    assert [line for line, call in zip(run, called, strict=True) if call is None] == []
    names = {call[1] for call in called if call}
    assert names <= targets
    # What .ci/run does, and a release.
    assert set(re.findall(r"^make ([\w-]+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)) <= names
    assert "release" in names


def test_the_tests_run_on_every_python_that_the_package_names() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = [found[1] for line in classifiers if (found := re.search(r"Python :: (3\.\d+)$", line))]
    assert jobs(FOLDER / "test.yml")["test"]["strategy"]["matrix"]["python"] == named


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_may_only_what_it_needs(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {}
    wide = {"attest": {"attestations": "write", "id-token": "write"}, "publish": {"id-token": "write"}}
    for name, job in jobs(path).items():
        assert job["permissions"] == wide.get(name, {"contents": "read"}), name
        assert job["timeout-minutes"] <= 60
    kept = [step["with"]["persist-credentials"] for step in steps(path) if "checkout" in step.get("uses", "")]
    assert not any(kept)


def test_only_what_was_built_and_checked_is_published_after_somebody_approved() -> None:
    release = jobs(FOLDER / "release.yml")
    assert release["publish"]["needs"] == ["build", "attest"]
    assert release["publish"]["environment"] == "pypi"
    assert {name for name, job in release.items() if "environment" in job} == {"publish"}
    (publish,) = [step for step in release["publish"]["steps"] if "pypi-publish" in step["uses"]]
    assert publish["with"] == {"packages-dir": "dist/packages"}
