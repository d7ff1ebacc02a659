"""Writes the files of a deployment: the templates, filled in for one spider."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from shoal.deploy.plan import GIT, Plan, WorkerGroup

REQUIREMENTS = "requirements.txt"
NO_REQUIREMENTS = "# Packages that the spider imports, one per line, as pip reads them.\n"
PASSWORDS = ("redis_password", "postgres_password", "token")
# The read-only token of a metrics collector.
READER_TOKEN = "reader_token"  # noqa: S105 - the name of its file
_MARK = re.compile(r"@([a-z_]+)@")
_PACKAGE = re.compile(r"[A-Za-z0-9][\w.-]*")
# In the build stage: the final image has no git.
GIT_STEP = """# For the requirement that names a git revision.
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates git
"""


class NewFile(NamedTuple):
    """A file of a deployment: its path in the folder, and its text."""

    path: str
    text: str


def template(name: str) -> str:
    """The text of a template."""
    return (files("shoal.deploy") / "templates" / name).read_text(encoding="utf-8")


def filled(text: str, values: Mapping[str, str]) -> str:
    """A template with its marks, such as `@name@`, replaced; a mark without a value is an error."""
    return _MARK.sub(lambda mark: values[mark[1]], text)


def words(given: Iterable[str]) -> str:
    """A command as a JSON list, which YAML reads as well; callers double `$` if their format has variables."""
    return json.dumps(list(given), ensure_ascii=False)


def image_files(plan: Plan) -> Iterator[NewFile]:
    """The files that build the image, without the spider's own files."""
    values = {
        "git": GIT_STEP if GIT in _requirements(plan) else "",
        "image": plan.image,
        "extras": ",".join(plan.extras),
        "version": plan.version,
        "reference": plan.reference,
    }
    yield NewFile("Dockerfile", filled(template("image/Dockerfile"), values))
    yield NewFile(".dockerignore", template("image/dockerignore"))
    yield from package_files(plan)


def package_files(plan: Plan) -> Iterator[NewFile]:
    """The files for packages that pip installs beside shoal."""
    yield NewFile(REQUIREMENTS, _requirements(plan))
    yield NewFile("wheels/README", "Wheels in this folder are preferred to those of the index.\n")
    if plan.requirement:
        yield NewFile(
            "spiders/README", f"The spider is in a package, which requirements.txt names: {plan.requirement}\n"
        )


def _requirements(plan: Plan) -> str:
    """The requirements.txt beside the spider, with the spider's own package."""
    beside = plan.folder / REQUIREMENTS
    text = beside.read_text(encoding="utf-8") if beside.is_file() else NO_REQUIREMENTS
    if not plan.requirement:
        return text
    kept = [line for line in text.splitlines() if _package(line) != _package(plan.requirement)]
    return "\n".join([*kept, plan.requirement, ""])


def _package(line: str) -> str:
    """The package that a line of a requirements.txt names, normalised as by pip; empty: none."""
    found = _PACKAGE.match(line)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def compose_files(plan: Plan) -> Iterator[NewFile]:
    """compose.yaml and its settings, and the files of the image."""
    values = {
        "name": plan.name,
        "image": plan.image,
        "stop_seconds": str(plan.stop_seconds),
        "run": _compose_words(plan.run),
        "workers": "\n".join(_compose_worker(plan, group) for group in plan.groups),
    }
    yield NewFile("compose.yaml", filled(template("compose/compose.yaml"), values))
    counts = "\n".join(f"{_variable(group)}={group.workers}" for group in plan.groups)
    images = f"IMAGE={plan.image}"
    if any(group.needs_browser for group in plan.groups):
        images += f"\nBROWSER_IMAGE={plan.image}-browser"
    yield NewFile(".env.example", filled(template("compose/env.example"), {"counts": counts, "images": images}))
    yield from image_files(plan)


def _compose_worker(plan: Plan, group: WorkerGroup) -> str:
    name = "compose/worker-browser.yaml" if group.needs_browser else "compose/worker.yaml"
    return filled(
        template(name),
        {
            "service": group.name,
            "worker": _compose_words(plan.container_words(group)),
            "replicas": _variable(group),
            "count": str(group.workers),
            "memory": group.memory,
            "image": plan.image,
        },
    )


def _compose_words(given: Iterable[str]) -> str:
    return words(word.replace("$", "$$") for word in given)


def _variable(group: WorkerGroup) -> str:
    """The variable with the number of workers of a group: WORKERS, WORKERS_BROWSER."""
    return group.name.replace("worker", "workers", 1).upper().replace("-", "_")


def write_files(folder: Path, new: Iterable[NewFile]) -> list[str]:
    """Write the files; returns their paths in the folder."""
    written = []
    for file in new:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")
        written.append(file.path)
    return written


def copy_spider(plan: Plan, folder: Path) -> list[str]:
    """Copy the spider's files to `spiders/`, keeping their folders."""
    written = []
    for file in plan.files:
        inner = Path("spiders") / file.relative_to(plan.folder)
        target = folder / inner
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
        written.append(inner.as_posix())
    return written


def make_passwords(folder: Path, *more: str) -> list[str]:
    """Make a random password for each server, the token of the dashboard, and `more`; existing ones stay.

    The folder is closed to other users of this machine, the files are not: containers read them as other users."""
    inner = folder / "secrets"
    inner.mkdir(mode=0o700, exist_ok=True)
    inner.chmod(0o700)
    made = []
    for name in (*PASSWORDS, *more):
        path = inner / name
        if not path.exists():
            # No line end: Prometheus sends the token exactly as it is stored.
            end = "" if name == READER_TOKEN else "\n"
            path.write_text(secrets.token_urlsafe(32) + end, encoding="utf-8")
            path.chmod(0o644)
            made.append(f"secrets/{name}")
    return made
