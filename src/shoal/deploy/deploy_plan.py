"""What a deployment runs: the spider with the files it needs, its command line, and how many workers of which kind."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shoal.crawl.code import own_files
from shoal.errors import UsageError
from shoal.model import BROWSER, HTTP
from shoal.settings.table import CONFIG_FILE
from shoal.version import __version__

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
