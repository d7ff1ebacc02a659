"""What is in the packages, held against the files of the repository."""

from __future__ import annotations

import email
import re
import tarfile
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path

SOURCE = "src/shoal/"
# In the sdist beside the sources: what a build needs, and what people read.
BESIDE = frozenset({"CHANGELOG.md", "LICENSE", "README.md", "SECURITY.md", "pyproject.toml", ".gitignore"})
MADE = "PKG-INFO"
LICENCE = "licenses/LICENSE"
# Of each kind, something that no import would miss.
KINDS = ("py.typed", ".lua", ".sql", "static/index.html", "templates/image/Dockerfile")
_SECRET = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\n[A-Za-z0-9+/=]{32}|\bpypi-AgEI[A-Za-z0-9_-]{16}")


def wheel_faults(wheel: Path, *, tracked: Collection[str]) -> Iterator[str]:
    """What a wheel has that it must not have, and what it lacks. `tracked`: the files of the repository."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        own = {name for name in names if ".dist-info/" not in name}
        wanted = {name.removeprefix("src/") for name in tracked if name.startswith(SOURCE)}
        yield from _compared(own, wanted, wheel.name)
        for kind in KINDS:
            if not any(name.endswith(kind) for name in own):
                yield f"{wheel.name} has no file {kind}"
        if not any(name.endswith(LICENCE) for name in names):
            yield f"{wheel.name} has no licence"
        yield from (f"{wheel.name} has a secret in {name}" for name in names if _SECRET.search(archive.read(name)))


def sdist_faults(sdist: Path, *, tracked: Collection[str]) -> Iterator[str]:
    """The same of a source distribution."""
    with tarfile.open(sdist) as archive:
        files = {name: member for member in archive if member.isfile() for name in [member.name.partition("/")[2]]}
        wanted = {name for name in tracked if name.startswith(SOURCE) or name in BESIDE}
        yield from _compared({*files} - {MADE}, wanted, sdist.name)
        for name, member in files.items():
            opened = archive.extractfile(member)
            if opened is not None and _SECRET.search(opened.read()):
                yield f"{sdist.name} has a secret in {name}"


def version_of(wheel: Path) -> str:
    """The version that a wheel says it has."""
    return str(_metadata(wheel)["Version"])


def extras_of(wheel: Path) -> list[str]:
    """The extras of a wheel."""
    return sorted(_metadata(wheel).get_all("Provides-Extra") or [])


def _metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def _compared(found: Collection[str], wanted: Collection[str], package: str) -> Iterator[str]:
    yield from (f"{package} has {name}, which is no file of the repository" for name in sorted({*found} - {*wanted}))
    yield from (f"{package} lacks {name}" for name in sorted({*wanted} - {*found}))
