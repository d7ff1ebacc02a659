"""Builds the packages, twice: the same sources must give the same bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from release.contents import sdist_faults, version_of, wheel_faults
from release.cutting import Refused

ROOT = Path(__file__).parents[1]
PACKAGES = ROOT / "dist" / "packages"
SECONDS = 900.0


def run(*words: str | Path, folder: Path = ROOT, **variables: str) -> str:
    """What a command prints; where it fails, its last lines are the refusal."""
    result = subprocess.run(  # noqa: S603 -- words of this package
        [str(word) for word in words],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if result.returncode:
        said = " | ".join((result.stdout + result.stderr).strip().splitlines()[-8:])
        raise Refused(f"`{' '.join(str(word) for word in words)}` failed: {said}")
    return result.stdout


def tracked_files() -> set[str]:
    """The files of the repository."""
    return {*run("git", "ls-files", "-z").split("\0")} - {""}


def check_clean() -> None:
    """Refuse a tree with changes: nobody could tell what a package was built from."""
    if changed := run("git", "status", "--porcelain").splitlines():
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise Refused(f"the tree has changes ({changed[0].split()[-1]}{more}): commit them first")


def build(into: Path = PACKAGES) -> tuple[Path, Path]:
    """The sdist and the wheel. The wheel is built from the sdist, and once more from the tree; the sdist twice."""
    moment = run("git", "log", "-1", "--format=%ct").strip()
    shutil.rmtree(into, ignore_errors=True)
    _build(into, moment=moment)
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder)
        _build(again, "--sdist", "--wheel", moment=moment)
        for path in sorted(again.iterdir()):
            if (into / path.name).read_bytes() != path.read_bytes():
                raise Refused(f"{path.name} differs between two builds: something in it depends on when it is built")
    (sdist,), (wheel,) = into.glob("*.tar.gz"), into.glob("*.whl")
    return sdist, wheel


def _build(into: Path, *what: str, moment: str) -> None:
    # Not isolated: the build uses the hatchling of constraints.txt, and downloads nothing.
    run(sys.executable, "-m", "build", "--no-isolation", *what, "--outdir", into, ROOT, SOURCE_DATE_EPOCH=moment)


def check_packages(sdist: Path, wheel: Path, *, version: str) -> None:
    """Refuse packages of another version, with files that do not belong to them, or that an index would refuse."""
    if version_of(wheel) != version:
        raise Refused(f"{wheel.name} is not of version {version}: take it from src/shoal/version.py")
    tracked = tracked_files()
    if faults := [*wheel_faults(wheel, tracked=tracked), *sdist_faults(sdist, tracked=tracked)]:
        raise Refused("; ".join(faults[:8]))
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
