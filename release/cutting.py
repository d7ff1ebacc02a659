"""The CHANGELOG cut for a version, and the version itself. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from typing import Final

UNRELEASED: Final = "## [Unreleased]\n"
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?")
_SECTION: Final = re.compile(r"^## \[([^\]]+)\](?: - (\S+))?$", re.MULTILINE)
_INTENTION: Final = re.compile(r"^What will be \d\S*: (\w)", re.MULTILINE)
_ASSIGNED: Final = re.compile(r'^__version__ = "([^"]*)"$', re.MULTILINE)
_FINAL: Final = 10**6  # after every release candidate


class Refused(Exception):  # noqa: N818 -- reads as what happened
    """Why there is no release, in one line that names what to do."""


def cut(changelog: str, version: str, *, on: date) -> str:
    """The CHANGELOG with what was unreleased under this version and date. Refuses a version that is none, that is there
    already or not newer than the others, and one without changes."""
    wanted = ranked(version)
    versions = [name for name, _ in sections(changelog) if name != "Unreleased"]
    if version in versions:
        raise Refused(f"CHANGELOG.md has a section for {version} already: name the next version")
    if older := [name for name in versions if ranked(name) > wanted]:
        raise Refused(f"{version} is older than {older[0]}, which CHANGELOG.md has: name a newer version")
    if UNRELEASED not in changelog:
        raise Refused("CHANGELOG.md has no line `## [Unreleased]`: put the changes under one")
    if not re.search(r"^- ", section(changelog, "Unreleased"), re.MULTILINE):
        raise Refused("nothing is under `## [Unreleased]` in CHANGELOG.md: there is nothing to release")
    cut_text = changelog.replace(UNRELEASED, f"{UNRELEASED}\n## [{version}] - {on.isoformat()}\n", 1)
    return _INTENTION.sub(lambda found: found[1].upper(), cut_text, count=1)


def section(changelog: str, name: str) -> str:
    """What the CHANGELOG says of a version. Refuses one that it does not have."""
    found = dict(sections(changelog))
    if name not in found:
        raise Refused(f"CHANGELOG.md has no section for {name}: `make release VERSION={name}` makes it")
    return found[name]


def sections(changelog: str) -> Iterator[tuple[str, str]]:
    """Each section's name and text, in the order of the file."""
    heads = list(_SECTION.finditer(changelog))
    for number, head in enumerate(heads):
        end = heads[number + 1].start() if number + 1 < len(heads) else len(changelog)
        yield head[1], changelog[head.end() : end].strip()


def with_version(source: str, version: str) -> str:
    """The module that names the version, with this one."""
    ranked(version)
    if len(_ASSIGNED.findall(source)) != 1:
        raise Refused('src/shoal/version.py has no single line `__version__ = "…"`: put it back')
    return _ASSIGNED.sub(f'__version__ = "{version}"', source)


def ranked(version: str) -> tuple[int, int, int, int]:
    """A version by which others can be compared. Refuses what is none."""
    found = _VERSION.fullmatch(version)
    if found is None:
        raise Refused(f"{version!r} is no version: write it as 1.2.3, or 1.2.3rc1 for a candidate")
    major, minor, patch, candidate = found.groups()
    return int(major), int(minor), int(patch), _FINAL if candidate is None else int(candidate)
