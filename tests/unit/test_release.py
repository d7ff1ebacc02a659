"""A release: the CHANGELOG cut, refusals in one line, what is in the packages. `make release` does the slow rest."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from datetime import date
from pathlib import Path

import pytest

from release.building import ROOT
from release.contents import extras_of, sdist_faults, version_of, wheel_faults
from release.cutting import Refused, cut, section, with_version
from shoal.version import DISTRIBUTION, __version__

pytestmark = pytest.mark.full

DAY = date(2026, 3, 1)
CHANGELOG = """# Changelog

## [Unreleased]

What will be 0.2.0: a spider runs.

### Added

- Sinks.

## [0.1.0] - 2026-01-01

- All of it.
"""


def test_what_was_unreleased_comes_under_the_version_and_the_date() -> None:
    text = cut(CHANGELOG, "0.2.0", on=DAY)
    assert section(text, "Unreleased") == ""
    assert section(text, "0.2.0") == "A spider runs.\n\n### Added\n\n- Sinks."
    assert section(text, "0.1.0") == "- All of it."
    assert "## [0.2.0] - 2026-03-01\n" in text


@pytest.mark.parametrize(
    ("version", "changelog", "refusal"),
    [
        ("0.2", CHANGELOG, "'0.2' is no version: write it as 1.2.3"),
        ("v0.2.0", CHANGELOG, "'v0.2.0' is no version"),
        ("0.1.0", CHANGELOG, "CHANGELOG.md has a section for 0.1.0 already: name the next version"),
        ("0.0.9", CHANGELOG, "0.0.9 is older than 0.1.0, which CHANGELOG.md has: name a newer version"),
        ("0.1.0rc1", CHANGELOG, "0.1.0rc1 is older than 0.1.0"),
        ("0.2.0", CHANGELOG.replace("- Sinks.", ""), "there is nothing to release"),
        ("0.2.0", CHANGELOG.replace("## [Unreleased]", "## Next"), "has no line `## [Unreleased]`"),
    ],
)
def test_a_cut_that_cannot_be_right_is_refused(version: str, changelog: str, refusal: str) -> None:
    with pytest.raises(Refused, match=re.escape(refusal)):
        cut(changelog, version, on=DAY)


def test_a_candidate_comes_before_its_version() -> None:
    text = cut(
        cut(CHANGELOG, "0.2.0rc1", on=DAY).replace("## [Unreleased]\n", "## [Unreleased]\n\n- Mended.\n"),
        "0.2.0",
        on=DAY,
    )
    assert section(text, "0.2.0") == "- Mended."


def test_the_version_is_set_in_its_one_line() -> None:
    assert with_version('"""Names it."""\n\n__version__ = "0.1.0"\n', "0.2.0").endswith('\n__version__ = "0.2.0"\n')
    with pytest.raises(Refused, match="no single line"):
        with_version("", "0.2.0")


def tracked() -> list[str]:
    """The files of the repository, with those that are about to be added."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in names if (ROOT / name).exists()]


def test_nothing_but_its_own_file_and_what_is_generated_names_the_version() -> None:
    generated = (
        "CHANGELOG.md",
        "deploy/",
        "docs/reference/",
        "bench/",
        "tests/",
        "docs/site_tools/",
        "checks/page_tools/",
    )
    named = re.compile(rf"^.*(?:shoal|version).*(?<![\d.]){re.escape(__version__)}(?![\d.])", re.MULTILINE)
    texts = {
        name: (ROOT / name).read_bytes().decode(errors="replace")
        for name in tracked()
        if not name.startswith(generated)
    }
    assert [name for name, text in texts.items() if named.search(text)] == ["src/shoal/version.py"]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel of the tree."""
    folder = tmp_path_factory.mktemp("packages")
    building = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(building, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def test_the_packages_have_the_files_of_the_repository_and_no_others(packages: tuple[Path, Path]) -> None:
    sdist, wheel = packages
    assert list(wheel_faults(wheel, tracked=tracked())) == []
    assert list(sdist_faults(sdist, tracked=tracked())) == []
    assert version_of(wheel) == __version__
    stem = f"{DISTRIBUTION.replace('-', '_')}-{__version__}"
    assert (sdist.name, wheel.name) == (f"{stem}.tar.gz", f"{stem}-py3-none-any.whl")
    assert {"redis", "serve", "postgres"} <= set(extras_of(wheel))


def test_a_wheel_with_a_cache_a_secret_or_without_a_script_is_found(
    packages: tuple[Path, Path], tmp_path: Path
) -> None:
    wheel = tmp_path / packages[1].name
    key = "-----BEGIN RSA PRIVATE KEY-----\n" + "A" * 64  # none: the check looks for its form
    with zipfile.ZipFile(packages[1]) as whole, zipfile.ZipFile(wheel, "w") as damaged:
        for name in whole.namelist():
            if not name.endswith(("lease.lua", "licenses/LICENSE", "py.typed")):
                damaged.writestr(name, whole.read(name))
        damaged.writestr("shoal/__pycache__/model.pyc", b"")
        damaged.writestr("shoal/key.pem", key)
    faults = "\n".join(wheel_faults(wheel, tracked=tracked()))
    for fault in (
        "has shoal/__pycache__/model.pyc, which is no file of the repository",
        "has a secret in shoal/key.pem",
        "lacks shoal/frontier/redis/lua/verbs/lease.lua",
        "has no file py.typed",
        "has no licence",
    ):
        assert f"{wheel.name} {fault}" in faults


def test_an_sdist_with_a_test_is_found(packages: tuple[Path, Path], tmp_path: Path) -> None:
    sdist = tmp_path / packages[0].name
    with tarfile.open(packages[0]) as whole:
        whole.extractall(tmp_path / "out", filter="data")
    (folder,) = (tmp_path / "out").iterdir()
    (folder / "test_it.py").write_text("")
    with tarfile.open(sdist, "w:gz") as damaged:
        damaged.add(folder, folder.name)
    assert list(sdist_faults(sdist, tracked=tracked())) == [
        f"{sdist.name} has test_it.py, which is no file of the repository"
    ]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A clean tree with what `python -m release` reads before it builds."""
    folder = tmp_path / "tree"
    shutil.copytree(ROOT / "release", folder / "release", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "src" / "shoal").mkdir(parents=True)
    shutil.copy(ROOT / "src" / "shoal" / "version.py", folder / "src" / "shoal")
    (folder / "CHANGELOG.md").write_text(CHANGELOG.replace("0.1.0", "0.0.1"))
    (folder / ".gitignore").write_text("__pycache__\n")
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def git(folder: Path, *words: str) -> None:
    named = ["-c", "user.name=a", "-c", "user.email=a@b.test", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *named, *words], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all")


def released(tree: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "release", *words]
    result = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False, timeout=60)
    return result.returncode, (result.stdout + result.stderr).strip()


def test_a_tree_with_changes_is_refused(tree: Path) -> None:
    (tree / "more.py").write_text("")
    refusal = (2, "release: the tree has changes (more.py): commit them first")
    assert released(tree) == refusal
    assert released(tree, "--cut", "9.0.0") == refusal


def test_a_version_without_a_section_and_a_tag_of_another_one_are_refused(tree: Path) -> None:
    needed = f"release: CHANGELOG.md has no section for {__version__}: `make release VERSION={__version__}` makes it"
    assert released(tree) == (2, needed)
    assert released(tree, "--cut", __version__)[0] == 0
    commit(tree)
    code, line = released(tree, "--tag", "v9.9.9")
    assert (code, line.partition(":")[2].strip()) == (
        2,
        f"the tag v9.9.9 is not v{__version__}, the version of the tree: tag the commit of that release",
    )


def test_a_cut_changes_the_changelog_and_the_version(tree: Path) -> None:
    assert released(tree, "--cut", "9.0.0") == (0, "CHANGELOG.md and src/shoal/version.py say 9.0.0")
    assert '__version__ = "9.0.0"' in (tree / "src" / "shoal" / "version.py").read_text()
    assert "## [9.0.0] - " in (tree / "CHANGELOG.md").read_text()
