"""Crawls that are killed on the way: a site that notes every request, and SIGKILL when so many pages were asked for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.site import SitePlan
from shoal.testing.sites.loopback import LoopbackServer, Reply, Request, reply

LOOK_SECONDS = 0.002
LONGEST_SECONDS = 600.0


class NotedSite:
    """A site on loopback in a thread of its own. `asked` counts the requests by page."""

    def __init__(self, plan: SitePlan, folder: Path, *, delay: float) -> None:
        self.paths = {f"/{plan.path(number)}" for number in range(plan.pages)}
        self._replies = {path: reply((folder / path[1:]).read_bytes(), delay=delay) for path in self.paths}
        self._none = reply("no such page", status=404)
        self._server = LoopbackServer(answer=self._answer)
        self.asked: Counter[str] = Counter()

    def _answer(self, request: Request) -> Reply:
        if request.path in self.paths:
            self.asked[request.path] += 1
        return self._replies.get(request.path, self._none)

    @contextlib.contextmanager
    def served(self) -> Iterator[str]:
        """Serve until the block ends; gives the URL of the site."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="site", daemon=True)
        thread.start()
        asyncio.run_coroutine_threadsafe(self._server.start(), loop).result()
        try:
            yield f"http://127.0.0.1:{self._server.port}"
        finally:
            asyncio.run_coroutine_threadsafe(self._server.close(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


class Ended(NamedTuple):
    """A crawl that was killed on the way and started again: how often, and how long it took in all."""

    kills: int
    seconds: float
    return_code: int


class Command(NamedTuple):
    """A crawler, as it is started, and again after each kill."""

    arguments: Sequence[str]
    folder: Path
    environment: Mapping[str, str]


def crawl_killed(command: Command, *, site: NotedSite, at: Sequence[int]) -> Ended:
    """Run to the end; killed each time that so many pages of the site have been asked for, and started again."""
    began, kills = time.perf_counter(), 0
    for pages in at:
        process = _start(command)
        if not _reaches(process, site, pages):
            return Ended(kills, time.perf_counter() - began, process.wait())
        _kill(process)
        kills += 1
    process = _start(command)
    if _reaches(process, site, len(site.paths) + 1):
        raise AssertionError("a site has no more pages than it has")
    return Ended(kills, time.perf_counter() - began, process.wait())


def _start(command: Command) -> subprocess.Popen[bytes]:
    with (command.folder / "output.log").open("ab") as output:
        return subprocess.Popen(
            command.arguments,
            cwd=command.folder,
            env=os.environ | command.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _reaches(process: subprocess.Popen[bytes], site: NotedSite, pages: int) -> bool:
    """Whether so many pages are asked for before the process ends by itself."""
    until = time.monotonic() + LONGEST_SECONDS
    while process.poll() is None:
        if len(site.asked) >= pages:
            return True
        if time.monotonic() > until:
            _kill(process)
            raise SystemExit(f"{process.args!r} was not done after {LONGEST_SECONDS:.0f} s: see its output.log")
        time.sleep(LOOK_SECONDS)
    return False


def _kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the process and to all that it started: a machine that loses its power spares none of them."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        family = [parent, *parent.children(recursive=True)]
        # Stopped first, so that none of them sees another one die and starts a new one.
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.suspend()
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family[1:], timeout=10)
    process.wait()
