"""What a deployment runs: the spider with the files it needs, its command line, and how many workers of which kind.

A spider that is a module of an installed package: what pip must be told to install it on a server.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path
from typing import Any, NamedTuple

from shoal.crawl.code import own_files
from shoal.errors import UsageError
from shoal.model import BROWSER, HTTP
from shoal.settings.table import CONFIG_FILE
from shoal.text.secrets import masked
from shoal.version import __version__

GIT = "git+"


def requirement_of(module: str) -> str:
    """The line of a requirements.txt that installs the package of a module as it is here: its version, or the git
    revision that it was installed from. Refuses a module that no package has, and one that no server can install."""
    names = packages_distributions().get(module.partition(".")[0])
    if not names:
        raise UsageError(
            f"--spider {module} is a module of no installed package: name its file, or install its package (pip install"
            " ./package), so that the servers can install the same"
        )
    package = distribution(names[0])
    origin = _origin(package)
    name, source = package.metadata["Name"], origin.get("url", "")
    if "vcs_info" in origin:
        if masked(source) != source:
            raise UsageError(f"{name} was installed from {masked(source)}: a password does not belong into a file")
        return f"{name} @ {origin['vcs_info']['vcs']}+{source}@{origin['vcs_info']['commit_id']}"
    if origin.get("dir_info", {}).get("editable"):
        raise UsageError(
            f"{name} is installed in editable mode, so its files change without a version: build a wheel (pip wheel"
            " --no-deps ./package), install that one here, and put it into wheels/"
        )
    return f"{name}=={package.version}"


def _origin(package: Distribution) -> dict[str, Any]:
    """Where pip has a package from, if not from an index."""
    found: dict[str, Any] = json.loads(package.read_text("direct_url.json") or "{}")
    return found


# What closes after the pages in hand: connections, and the process itself.
CLOSING_SECONDS = 10
METRICS_PORT, SERVE_PORT = 9100, 8642
_LONGEST_NAME = 40


class WorkerGroup(NamedTuple):
    """Workers that are scaled together. `kind` is empty for those that do what the spider's class names."""

    name: str
    kind: str
    workers: int
    memory: str

    @property
    def needs_browser(self) -> bool:
        return self.kind == BROWSER


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`reference` is the spider as the processes name it in the folder of its files, `run` the words after `shoal`
    that begin its crawl. `spider` is its name in crawls and metrics, `name` what servers and clusters take of it;
    `kinds` are those that its workers do where no others are named. `requirement` names the package of a spider that
    is a module, as pip reads it."""

    reference: str
    spider: str
    kinds: tuple[str, ...]
    name: str
    folder: Path
    files: tuple[Path, ...]
    run: tuple[str, ...]
    groups: tuple[WorkerGroup, ...]
    grace_seconds: float
    image: str
    extras: tuple[str, ...]
    requirement: str = ""

    @property
    def stop_seconds(self) -> int:
        """How long whoever stops a process must wait before it kills it."""
        return math.ceil(self.grace_seconds) + CLOSING_SECONDS

    @property
    def version(self) -> str:
        return __version__

    def kinds_of(self, group: WorkerGroup) -> tuple[str, ...]:
        """The kinds of tasks that a group does."""
        return (group.kind,) if group.kind else self.kinds

    def worker_words(self, group: WorkerGroup) -> list[str]:
        """The words after `shoal` that run a worker of this group."""
        # Whatever restarts it would wait longer and longer, and count a worker that retires among those that failed.
        return ["worker", self.reference, *(["--kinds", group.kind] if group.kind else []), "--replace"]

    def container_words(self, group: WorkerGroup) -> list[str]:
        """The same in a container, which has its own port for metrics."""
        return [*self.worker_words(group), "--metrics", f"0.0.0.0:{METRICS_PORT}"]


def label_of(spider: str) -> str:
    """A spider's name as servers and clusters take it: small letters, digits and hyphens, a letter first."""
    text = re.sub(r"[^a-z0-9]+", "-", spider.lower()).strip("-")[:_LONGEST_NAME].strip("-")
    return text if text[:1].isalpha() else f"spider-{text}".strip("-")


def kinds_of_workers(named: tuple[str, ...], *, given: tuple[str, ...]) -> tuple[str, ...]:
    """The kinds that get workers of their own: those that were given, else the kinds that the spider names itself where
    a browser is among them; that one needs another image than the others."""
    return given or (named if BROWSER in named else ())


def kinds_of_run(named: tuple[str, ...]) -> list[str]:
    """The flag with which `shoal run` of the crawl leaves pages for a browser to workers that have one."""
    others = [kind for kind in named if kind != BROWSER] or [HTTP]
    return ["--kinds", ",".join(others)] if BROWSER in named else []


def worker_groups(kinds: tuple[str, ...], *, count: int) -> tuple[WorkerGroup, ...]:
    """A group of workers for each kind; the first one is `worker`. A browser needs memory, so there is one at first."""
    return tuple(
        WorkerGroup(
            name="worker" if index == 0 else f"worker-{label_of(kind)}",
            kind=kind,
            workers=1 if kind == BROWSER else count,
            memory="2g" if kind == BROWSER else "512m",
        )
        for index, kind in enumerate(kinds or ("",))
    )


def files_of(spider_file: Path) -> tuple[Path, ...]:
    """The spider's file, what it has imported from its own folder, and shoal.toml beside it. The spider is loaded."""
    return tuple(sorted([*own_files(spider_file), *settings_files(spider_file.resolve().parent)]))


def settings_files(folder: Path) -> tuple[Path, ...]:
    """shoal.toml, if it is there."""
    settings = folder.resolve() / CONFIG_FILE
    return (settings,) if settings.is_file() else ()


def check_folder(folder: Path, *, force: bool) -> None:
    """Refuse a folder that has files already, unless they may be replaced."""
    if folder.is_file():
        raise UsageError(f"{folder} is a file: name a folder, it is made if it is not there")
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty: name another folder, or --force to replace the files that it has")
