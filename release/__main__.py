"""`python -m release`: cut the CHANGELOG for a version, or build and check what the tree is."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from release.building import PACKAGES, ROOT, build, check_clean, check_packages
from release.cutting import Refused, cut, section, with_version
from release.trying import try_wheel, write_sbom
from shoal.version import __version__

CHANGELOG = ROOT / "CHANGELOG.md"
VERSION_FILE = ROOT / "src" / "shoal" / "version.py"
Say = Callable[[str], None]


def cut_version(version: str, *, say: Say) -> None:
    """Move what is unreleased to a version, and set that."""
    check_clean()
    today = datetime.now(UTC).date()
    changelog = cut(CHANGELOG.read_text(encoding="utf-8"), version, on=today)
    module = with_version(VERSION_FILE.read_text(encoding="utf-8"), version)
    CHANGELOG.write_text(changelog, encoding="utf-8")
    VERSION_FILE.write_text(module, encoding="utf-8")
    say(f"CHANGELOG.md and src/shoal/version.py say {version}")


def make(*, tag: str, say: Say) -> None:
    """Build the packages of the tree, check them, try the wheel, and write what it pulls in."""
    check_clean()
    section(CHANGELOG.read_text(encoding="utf-8"), __version__)
    if tag and tag != f"v{__version__}":
        raise Refused(f"the tag {tag} is not v{__version__}, the version of the tree: tag the commit of that release")
    sdist, wheel = build()
    say(f"built {sdist.name} and {wheel.name}, twice, with the same bytes")
    check_packages(sdist, wheel, version=__version__)
    say("checked their contents and their metadata")
    with tempfile.TemporaryDirectory() as folder:
        try_wheel(wheel, Path(folder))
        say("ran the demo and a crawl from the wheel, in an empty environment")
        bom = PACKAGES.parent / f"{wheel.name.partition('-')[0]}-{__version__}.cdx.json"
        number = write_sbom(wheel, Path(folder), bom)
        say(f"wrote {bom.relative_to(ROOT)}: {number} components")
    say(f"{PACKAGES.relative_to(ROOT)} is ready: tag the commit v{__version__} and push the tag")


def main(arguments: list[str]) -> int:
    """Do it; the return code says whether it was refused."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument(
        "--cut", metavar="VERSION", default="", help="cut the CHANGELOG for this version, build nothing"
    )
    parser.add_argument("--tag", default="", help="refuse to build unless this is the tag of the version")
    given = parser.parse_args(arguments)
    try:
        if given.cut:
            cut_version(given.cut, say=_say)
        else:
            make(tag=given.tag, say=_say)
    except Refused as error:
        sys.stderr.write(f"release: {error}\n")
        return 2
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
