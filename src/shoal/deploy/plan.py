"""What a deployment runs: the spider with its files, its command line, and its groups of workers.

For a spider in an installed package: the requirement that installs the package on a server."""

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
    revision that it was installed from. Refuses a module without a package, and a package that a server cannot
    install."""
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
    """Where pip installed a package from, if not from an index."""
    found: dict[str, Any] = json.loads(package.read_text("direct_url.json") or "{}")
    return found


# Time to close connections and to exit, after the pages in hand.
CLOSING_SECONDS = 10
METRICS_PORT, SERVE_PORT = 9100, 8642
_LONGEST_NAME = 40


class WorkerGroup(NamedTuple):
    """Workers that are scaled together. An empty `kind`: the kinds that the spider's class names."""

    name: str
    kind: str
    workers: int
    memory: str

    @property
    def needs_browser(self) -> bool:
        return self.kind == BROWSER


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`reference` names the spider for the processes, in the folder of its files; `run` is the command after `shoal`
    that begins its crawl. `spider` is its name in crawls and metrics, `name` its name on servers and clusters; `kinds`
    are the kinds of its workers if a group names none. `requirement` installs the package of a spider that is a
    module."""

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
        """How long to wait for a process to stop before killing it."""
        return math.ceil(self.grace_seconds) + CLOSING_SECONDS

    @property
    def version(self) -> str:
        return __version__

    def kinds_of(self, group: WorkerGroup) -> tuple[str, ...]:
        """The kinds of tasks that a group does."""
        return (group.kind,) if group.kind else self.kinds

    def worker_words(self, group: WorkerGroup) -> list[str]:
        """The command after `shoal` for a worker of this group."""
        # --replace: a service manager would restart it more and more slowly, and count a retired worker as failed.
        return ["worker", self.reference, *(["--kinds", group.kind] if group.kind else []), "--replace"]

    def container_words(self, group: WorkerGroup) -> list[str]:
        """The same for a container, which serves metrics on a port of its own."""
        return [*self.worker_words(group), "--metrics", f"0.0.0.0:{METRICS_PORT}"]


def label_of(spider: str) -> str:
    """A spider's name for servers and clusters: lower-case letters, digits and hyphens, a letter first."""
    text = re.sub(r"[^a-z0-9]+", "-", spider.lower()).strip("-")[:_LONGEST_NAME].strip("-")
    return text if text[:1].isalpha() else f"spider-{text}".strip("-")


def kinds_of_workers(named: tuple[str, ...], *, given: tuple[str, ...]) -> tuple[str, ...]:
    """The kinds with worker groups of their own: the given kinds, else the kinds of the spider if one is a browser,
    which needs another image."""
    return given or (named if BROWSER in named else ())


def kinds_of_run(named: tuple[str, ...]) -> list[str]:
    """The flag with which `shoal run` leaves browser pages to workers with a browser."""
    others = [kind for kind in named if kind != BROWSER] or [HTTP]
    return ["--kinds", ",".join(others)] if BROWSER in named else []


def worker_groups(kinds: tuple[str, ...], *, count: int) -> tuple[WorkerGroup, ...]:
    """A group for each kind; the first is `worker`. A browser needs much memory, so its group begins with one
    worker."""
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
    """The spider file, the files that it imports from its own folder, and shoal.toml beside it. Loads the spider."""
    return tuple(sorted([*own_files(spider_file), *settings_files(spider_file.resolve().parent)]))


def settings_files(folder: Path) -> tuple[Path, ...]:
    """shoal.toml, if it exists."""
    settings = folder.resolve() / CONFIG_FILE
    return (settings,) if settings.is_file() else ()


def check_folder(folder: Path, *, force: bool) -> None:
    """Refuse a folder with files, unless `force` allows to replace them."""
    if folder.is_file():
        raise UsageError(f"{folder} is a file: name a folder, it is made if it is not there")
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty: name another folder, or --force to replace the files that it has")
