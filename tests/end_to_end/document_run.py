"""A page of the documents, done as its readers would do it: files written, commands run, what is shown compared."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

from docs_pages import Block, command_lines, shoal_words
from shoal.cli.main import shoal
from shoal.testing.waiting import wait_until

SECONDS = 100.0
# A busy machine answers late now and then, and an adaptive pace would take that for a struggling site.
ALWAYS = {"SHOAL_PACE": "fixed", "SHOAL_ALLOW_PRIVATE": "true", "SHOAL_RATE": "unlimited", "PAGER": "cat"}
# What stands ready where tests run: packages, and the database.
READY = ("pip install ", "apt-get install ", "createdb ")
# Commands that start no process of their own: they are called here, which spares most of their time.
LOOKING = {"status", "why", "dead", "export", "sql", "page", "diff", "settings", "pace", "sink"}
SHELL = {"|", "<", ">", "&&"}
# Commands that go on until they are told to stop.
ENDLESS = {"serve", "worker"}
GOES_ON = {"--follow", "--stay"}
STOPPED = {0, 128 + signal.SIGINT, 128 + signal.SIGTERM}
RETURN_CODE = re.compile(r"# return code (\d+)")


class Started(NamedTuple):
    """A command that goes on, and the file with what it says."""

    line: str
    process: subprocess.Popen[bytes]
    log: Path

    def __str__(self) -> str:
        return f"{self.line}: {self.process.returncode}\n{self.log.read_text(encoding='utf-8')}"


class DocumentRun:
    """One page in one folder. `local` puts servers of this machine in the place of those that the page names."""

    def __init__(self, folder: Path, local: Callable[[str], str], environ: dict[str, str]) -> None:
        self._folder = folder
        self._local = local
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        self._environ = {**kept, **ALWAYS, **environ, "PATH": programs}
        self._started: list[Started] = []

    def write(self, name: str, text: str) -> None:
        """A file of the page; spiders go as fast as they can, those that search for their pace from fast to faster."""
        rate, most = ("200/s", "400/s") if 'pace = "search"' in text else ("unlimited", "")
        text = re.sub(r'^( +rate = )"[^"]+"', rf'\1"{rate}"', self._local(text), flags=re.MULTILINE)
        text = re.sub(r'^( +max_rate = )"[^"]+"', rf'\1"{most}"', text, flags=re.MULTILINE)
        (self._folder / name).write_text(text, encoding="utf-8")

    def run(self, found: Iterable[Block]) -> None:
        """Everything that is not marked, in the order of the page."""
        output: list[str] = []
        was_text = True
        for block in [block for block in found if not block.mark]:
            if block.name:
                self.write(block.name, block.text)
            elif block.language == "sh":
                output = [*([] if was_text else output), *self._lines(block)]
            elif block.language == "text":
                check_shown(self._local(block.text).splitlines(), output)
            was_text = block.language == "text"

    def command(self, line: str) -> str:
        """What one more command writes to its standard output; it must end well."""
        result = subprocess.run(
            shlex.split(self._local(line)),
            cwd=self._folder,
            env=self._environ,
            text=True,
            capture_output=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def close(self) -> None:
        """End what still runs: commands that are told to stop end well. Workers end before what they work with."""
        failed = []
        for started in reversed(self._started):
            started.process.send_signal(signal.SIGTERM)
            if started.process.wait(SECONDS) not in STOPPED:
                failed.append(str(started))
        assert not failed, "\n".join(failed)

    def _lines(self, block: Block) -> list[str]:
        """What the lines of a block print. A run whose tasks may be for workers of the next lines runs with them."""
        output: list[str] = []
        lines = typed(block)
        has_workers = any(line.startswith("shoal worker ") for line in lines)
        runs: list[Started] = []
        for line in lines:
            if line.startswith("export "):
                pairs = [word.partition("=") for word in shlex.split(line, comments=True)[1:]]
                self._environ |= {name: self._local(value) for name, _, value in pairs}
            elif has_workers and line.startswith("shoal run "):
                runs.append(self._begin(line))
            elif is_endless(line):
                self._begin(line)
            else:
                output += self._done(line)
        for run in runs:
            assert run.process.wait(SECONDS) == 0, str(run)
            output += run.log.read_text(encoding="utf-8").splitlines()
        return output

    def _begin(self, line: str) -> Started:
        """Start a command that goes on, and wait until it says something."""
        free_port = " --port 0" if line.startswith("shoal serve ") else ""
        log = self._folder / f"command-{len(self._started)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {self._local(without_comment(line))}{free_port}"],
                cwd=self._folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._started.append(Started(line, process, log))
        wait_until(
            lambda: log.stat().st_size or process.poll() is not None, otherwise=f"{line} says nothing", seconds=SECONDS
        )
        return self._started[-1]

    def _done(self, line: str) -> list[str]:
        wanted = RETURN_CODE.search(line)
        words = shlex.split(self._local(line), comments=True)
        if words[0] == "shoal" and words[1] in LOOKING and not set(words) & SHELL:
            with contextlib.chdir(self._folder):
                found = CliRunner().invoke(shoal, words[1:], env=self._environ)
            assert found.exit_code == int(wanted[1] if wanted else 0), f"{line}\n{found.output}{found.exception!r}"
            return found.output.splitlines()
        result = subprocess.run(
            ["bash", "-o", "pipefail", "-c", self._local(without_comment(line))],
            cwd=self._folder,
            env=self._environ,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=SECONDS,
        )
        assert result.returncode == int(wanted[1] if wanted else 0), f"{line}\n{result.stdout}"
        return result.stdout.splitlines()


def typed(block: Block) -> list[str]:
    """The lines of a block that are run."""
    return [line for line in command_lines(block) if not line.startswith(READY)]


def is_endless(line: str) -> bool:
    return any(words[0] in ENDLESS or GOES_ON & set(words) for words in shoal_words(line))


def without_comment(line: str) -> str:
    """A line of a shell without the words for its reader, so that options can be added to it."""
    return re.sub(r"\s+# .*$|\s+#$", "", line) if "#" in line else line


def check_shown(expected: list[str], output: list[str]) -> None:
    """Each line that a document shows was written, in this order; … stands for anything."""
    lines = iter(output)
    for line in expected:
        pattern = re.compile(".*".join(map(re.escape, line.strip().split("…"))))
        assert any(pattern.fullmatch(written.strip()) for written in lines), f"{line!r} is not in\n" + "\n".join(output)
