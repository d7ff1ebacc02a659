"""`shoal` as people run it: a process of its own, in a folder of its own; a fork, unless `real`."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from click.testing import Result as Invoked

from forked_shoal import Started
from shoal.cli.main import shoal
from shoal.frontier import open_frontier
from shoal.testing.waiting import eventually

Result = subprocess.CompletedProcess[str]
SECONDS = 120.0
TERMINAL_VARIABLES = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM"}
SHOP = """
from shoal import Item, Spider

class Books(Spider):
    start = ["{url}catalogue/page-1.html"]
    rate = "{rate}"
    settings = {{"allow_private": True, "pace": "fixed", "retry_seconds": 0.1}}

    def parse(self, page):
        yield page.follow("article h3 a", self.book, priority=1)
        yield page.follow("li.next a")

    def book(self, page):
        {first}
        yield Item(key=page.text("tr:nth-child(1) td"), title=page.text("h1"), price=page.text(".price_color"))
        yield page.follow("footer a", self.book)
"""


class Folder:
    """A folder in which commands are run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def spider(self, url: str, *, rate: str = "unlimited", first: str = "pass") -> str:
        """Write books.py, a spider for the shop; `first` is what its handler does before anything else."""
        (self.path / "books.py").write_text(SHOP.format(url=url, rate=rate, first=first))
        return "books.py"

    def start(self, *arguments: str, **options: Any) -> Started:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return Started(*arguments, cwd=self.path, **{"env": self.environ(), **pipes, **options})

    def run(self, *arguments: str, code: int = 0, stdin: str = "", real: bool = False) -> Result:
        """Run to the end; the return code must be this one."""
        with self.start(*arguments, stdin=subprocess.PIPE, real=real) as process:
            out, err = process.communicate(stdin, timeout=SECONDS)
        assert process.returncode == code, f"{arguments}: {process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def environ(self) -> dict[str, str]:
        """The environment of this folder's commands: nobody's own places and tokens."""
        return {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}

    def on_terminal(
        self, *arguments: str, columns: int = 80, environ: Mapping[str, str] | None = None, keys: bytes = b""
    ) -> str:
        """What a command shows on a terminal of this width; `keys` are typed at the first thing that it shows."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        kept = {name: value for name, value in os.environ.items() if name not in TERMINAL_VARIABLES}
        env = {**kept, "TERM": "xterm-256color", **(environ or {})}
        shown = b""
        with Started(*arguments, cwd=self.path, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
            os.close(theirs)
            # The end of the terminal is an error: nobody writes to it any more.
            with contextlib.suppress(OSError):
                while chunk := _read(ours):
                    if keys and not shown:
                        os.write(ours, keys)
                    shown += chunk
            process.wait(SECONDS)
        os.close(ours)
        assert process.returncode == 0, shown.decode()
        return shown.decode().replace("\r\n", "\n")

    def json(self, *arguments: str, code: int = 0, stdin: str = "") -> Any:
        """What a command prints with --json."""
        return json.loads(self.run(*arguments, "--json", code=code, stdin=stdin).stdout)

    def refusal(self, *arguments: str, code: int = 2) -> str:
        """The one line on stderr with which a command refuses."""
        result = self.run(*arguments, code=code)
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert line.startswith("shoal: ")
        return line

    def hurry(self, url: str, *, crawl: str = "books-1") -> None:
        """Let a crawl that was slow, so that something could be seen in time, get to its end."""
        self.run("pace", url.split("/")[2], "unlimited", crawl)

    def wait_for_pages(self, pages: int, *, crawl: str = "books-1", workers: int = 1) -> list[int]:
        """The process ids of the workers, once there are that many and that many pages are done."""
        return asyncio.run(self._wait_for_pages(pages, crawl, workers))

    async def _wait_for_pages(self, pages: int, crawl: str, workers: int) -> list[int]:
        frontier = await open_frontier(str(self.path / "shoal.db"))

        async def read() -> list[int]:
            if crawl not in {found.id for found in await frontier.crawls()}:
                return []
            beats, progress = await frontier.workers(), await frontier.progress(crawl)
            return [beat.pid for beat in beats] if len(beats) >= workers and progress.done >= pages else []

        try:
            return await eventually(read, pause=0.05)
        finally:
            await frontier.close()


def shoal_(*arguments: str, code: int = 0, stdin: str | None = None) -> Invoked:
    """Run a command that starts no process and hears no signal, in this process and folder."""
    result = CliRunner().invoke(shoal, list(arguments), input=stdin)
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def json_of(*arguments: str, stdin: str | None = None) -> Any:
    return json.loads(shoal_(*arguments, "--json", stdin=stdin).stdout)


def _read(terminal: int) -> bytes:
    """What a command has shown since; nothing when it has shown nothing for long."""
    ready, _, _ = select.select([terminal], [], [], SECONDS)
    return os.read(terminal, 65_536) if ready else b""


def interrupt(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
