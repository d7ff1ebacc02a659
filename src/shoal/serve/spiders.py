"""The folder of spiders that may be started over HTTP and by schedules; each run is a process in a session of its
own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.crawl.opening import Places
from shoal.duties.schedules.config import Schedule
from shoal.errors import UsageError
from shoal.settings.table import (
    FIELDS,
    FRONTIER_VARIABLE,
    LOG_FORMAT_VARIABLE,
    LOG_MARK_VARIABLE,
    PIPE_VARIABLE,
    READER_VARIABLE,
    SINK_VARIABLE,
    STORE_VARIABLE,
    TOKEN_VARIABLE,
)
from shoal.spider.loading import NO_ARGUMENTS
from shoal.text.near_names import did_you_mean

LOGS = "shoal-logs"
LONGEST_LOG = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.py(:[A-Za-z_]\w*)?")
_BEGUN = re.compile(r"^(?:shoal: )?(?:beginning|resuming) (\S+) in ", re.MULTILINE)
_OWN = (TOKEN_VARIABLE, READER_VARIABLE, LOG_FORMAT_VARIABLE, LOG_MARK_VARIABLE, PIPE_VARIABLE, SINK_VARIABLE)
NO_FOLDER = "no spider may be started here: start `shoal serve` with --spiders FOLDER"


class StartRequest(NamedTuple):
    """A spider of the folder to run, and how. `scheduled`: the name of the schedule's run, if it is one."""

    spider: str
    settings: Mapping[str, str | int | float | bool]
    workers: int = 1
    fresh: bool = False
    arguments: Mapping[str, str] = NO_ARGUMENTS
    scheduled: str = ""


class Child:
    """A started run: its process, and the file with its output."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, run: StartRequest) -> None:
        self._process = process
        self.log = log
        self.run = run
        self.pid = process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended; reaps it."""
        return self._process.poll() is not None

    @property
    def has_failed(self) -> bool:
        return bool(self._process.poll())

    @property
    def log_file(self) -> str:
        return str(self.log)

    @property
    def crawl(self) -> str | None:
        """The crawl that it began or resumed, once its output names it."""
        found = _BEGUN.search(self.output())
        return found[1] if found else None

    @property
    def last_line(self) -> str:
        """The last line of its output."""
        lines = [line.strip() for line in self.output().splitlines() if line.strip()]
        return lines[-1].removeprefix("shoal: ") if lines else "it said nothing"

    def output(self) -> str:
        """The beginning of its output."""
        with self.log.open("rb") as file:
            return file.read(LONGEST_LOG).decode("utf-8", "replace")


class Spiders:
    """The folder of spiders, and the started runs. Without a folder no spider may be started."""

    def __init__(
        self, folder: Path | None, places: Places, *, logs: Path | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        if folder is not None and not folder.is_dir():
            raise UsageError(f"--spiders {folder} is no folder")
        self._folder = None if folder is None else folder.resolve()
        self._places = places
        self._logs = Path(LOGS) if logs is None else logs
        self._clock = clock
        self._children: dict[int, Child] = {}
        self.started: dict[str, Child] = {}

    def names(self) -> list[str]:
        """The files that may be started."""
        if self._folder is None:
            return []
        found = (path.name for path in self._folder.glob("*.py"))
        return sorted(name for name in found if _NAME.fullmatch(name) and self._is_inside(self._folder / name))

    def name_of(self, path: str) -> str:
        """The name by which a spider's file may be started. UsageError: it is not in the folder."""
        folder = self._checked_folder()
        name = Path(path).name
        if not path or Path(path).resolve() != folder / name or name not in self.names():
            raise UsageError(f"the file of this spider, {path or 'a module'}, is not in the folder of --spiders")
        return name

    def start(self, run: StartRequest) -> Child:
        """Run a spider in a process of its own, which survives this one."""
        self.reap()
        path = self._path(run.spider)
        self._logs.mkdir(parents=True, exist_ok=True)
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self._clock()))
        log = self._free_log(f"{run.spider.partition(':')[0].removesuffix('.py')}-{stamp}")
        command = [sys.executable, "-m", "shoal", "run", path, *_options(run)]
        if self._places.archive:
            command += ["--archive", self._places.archive]
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 -- a file of the folder, options that are checked
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment(),
                start_new_session=True,
            )
        child = Child(process, log.resolve(), run)
        self._children[child.pid] = child
        return child

    def reference(self, spider: str) -> str:
        """The path of a spider of the folder, as in its crawls' records. UsageError: there is none."""
        return self._path(spider)

    def start_run(self, schedule: Schedule, run: str) -> Child:
        """Start the run of a schedule."""
        return self.start(
            StartRequest(
                schedule.spider, schedule.settings, schedule.workers, arguments=schedule.arguments, scheduled=run
            )
        )

    @property
    def has_folder(self) -> bool:
        """Whether any spider may be started."""
        return self._folder is not None

    def reap(self) -> None:
        """Reap children that have ended."""
        self._children = {pid: child for pid, child in self._children.items() if not child.has_ended}

    def _checked_folder(self) -> Path:
        if self._folder is None:
            raise UsageError(NO_FOLDER)
        return self._folder

    def _path(self, spider: str) -> str:
        folder = self._checked_folder()
        name, colon, kind = spider.partition(":")
        if not _NAME.fullmatch(spider) or not self._is_inside(folder / name):
            known = ", ".join(self.names()[:20]) or "no file"
            meant = did_you_mean(name, self.names())
            raise UsageError(
                f"{spider!r} is no spider of the folder of --spiders, which has {known}{f'; {meant}' if meant else ''}"
            )
        return f"{folder / name}{colon}{kind}"

    def _is_inside(self, path: Path) -> bool:
        """Whether this is a file of the folder itself, not a link to a file elsewhere."""
        return path.is_file() and path.resolve().parent == self._folder

    def _free_log(self, name: str) -> Path:
        for number in range(1, 1000):
            log = self._logs / f"{name}{'' if number == 1 else f'-{number}'}.log"
            try:
                os.close(os.open(log, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                continue
            return log
        raise UsageError(f"{self._logs} has too many logs of this second")

    def _environment(self) -> dict[str, str]:
        """The environment of a run. It has the places: every user of the machine can read a command line. It lacks
        tokens, and the log format: the first lines of a run are parsed as text."""
        kept = {name: text for name, text in os.environ.items() if name not in _OWN}
        kept[FRONTIER_VARIABLE] = self._places.frontier
        if self._places.store:
            kept[STORE_VARIABLE] = self._places.store
        return kept


def _options(run: StartRequest) -> Sequence[str]:
    options = ["--workers", str(run.workers), "--yes", *(["--fresh"] if run.fresh else ["--again"])]
    options += [f"--argument={name}={text}" for name, text in run.arguments.items()]
    options += ["--scheduled", run.scheduled] if run.scheduled else []
    for name, value in run.settings.items():
        if name not in FIELDS:
            raise UsageError(f"there is no setting {name!r}: `shoal settings` lists them")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        options += ["--set", f"{name}={text}"]
    return options
