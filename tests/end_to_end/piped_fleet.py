"""A crawl whose workers reach nothing but a broker, their site and the store, by real `shoal` processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.testing.sites.loopback import Hit, busiest_window
from shoal.testing.waiting import wait_for_line

SECONDS = 120.0
SERVES, STANDS_BY = "workers are served at", "this one stands by"
# Read by every Python process that begins with it on its path: what a later release would have.
NEWER = "import shoal.pipes.messages as messages\nmessages.VERSION += 1\n"


@dataclass
class PipedFleet:
    """A crawl whose workers are behind a pipe, and its processes."""

    crawl: Any  # a GraphCrawl
    pipe: str
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(
        self, *arguments: str, newer: bool = False, pipe: str = "", log: Path | None = None
    ) -> subprocess.Popen[str]:
        """Start a command; `newer`: of a shoal whose messages have the next version. `log`: a file for what it says."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        environ["SHOAL_PIPE"] = pipe or self.pipe
        if newer:
            folder = self.crawl.db.parent / "newer"
            folder.mkdir(exist_ok=True)
            (folder / "sitecustomize.py").write_text(NEWER)
            environ["PYTHONPATH"] = str(folder)
        command = [sys.executable, "-m", "shoal", *arguments]
        with log.open("w") if log else nullcontext(subprocess.PIPE) as said:
            process = subprocess.Popen(
                command, env=environ, cwd=self.crawl.db.parent, stdout=said, stderr=said, text=True,
                start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def start_coordinator(self, *, until: str = SERVES, newer: bool = False, pipe: str = "") -> subprocess.Popen[str]:
        """Start one, and wait until it says that it serves workers, or what else it is to say."""
        process = self.start("serve", "--port", "0", "--frontier", self.crawl.frontier, newer=newer, pipe=pipe)
        wait_for_line(process.stderr, until)
        return process

    def start_worker(self, *options: str, **more: Any) -> subprocess.Popen[str]:
        where = ["--crawl", self.crawl.crawl, "--store", self.crawl.store]
        return self.start("worker", self.crawl.spider, "--burst", *where, *options, **more)

    def end(self) -> None:
        for process in self.processes:
            kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL for a command and the processes that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


async def ended(process: subprocess.Popen[str], *, code: int = 0) -> str:
    """What a worker said, once it has ended as it should."""
    async with asyncio.timeout(SECONDS):
        _, err = await asyncio.to_thread(process.communicate)
    assert process.returncode == code, err
    return err


def fetches(fleet: PipedFleet) -> Counter[str]:
    return Counter(hit.path for hit in fleet.crawl.site.hits())


def check_pace(hits: list[Hit], *, per_second: int) -> None:
    """No second of the site's clock has more requests than the pace allows, but for what the way to it takes."""
    assert busiest_window(hits) <= per_second * 1.15 + 1
