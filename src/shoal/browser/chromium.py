"""One Chromium at a time: started, watched, replaced after some pages or when it dies, and killed with its worker.

The memory of its processes is watched only on Linux (/proc).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import playwright
from playwright.async_api import Browser, Playwright, async_playwright

from shoal.browser import tied_process
from shoal.fetch.faults import one_line
from shoal.settings.table import Settings

PROC: Final = Path("/proc")
RENDERER: Final = b"--type=renderer"
WATCH_SECONDS: Final = 0.2
CLOSE_SECONDS: Final = 5.0
START_SECONDS: Final = 60.0
FOLDER: Final = "shoal-browser-"  # followed by the process id of the worker
NODE_VARIABLE: Final = "PLAYWRIGHT_NODEJS_PATH"
TIED: Final = str(Path(tied_process.__file__).with_name("tied.sh"))
# Nothing bypasses the proxy of a page: the browser's own proxy does not exist, it looks up no names, and sends no UDP.
FLAGS: Final = (
    "--proxy-server=http://127.0.0.1:1",
    "--proxy-bypass-list=<-loopback>",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--disable-quic",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--dns-prefetch-disable",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-gpu",
    "--no-pings",
    "--mute-audio",
)


class BrowserMissingError(Exception):
    """No browser can be started now."""


class RunningBrowser:
    """A browser process, and the number of its pages."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.pages = 0  # in all
        self.now = 0  # open
        self.is_retired = False
        self.blames_page = False  # it died with only one open page, which is the likely cause
        self._end = asyncio.Event()
        browser.on("disconnected", lambda _: self.note_end())

    @property
    def has_died(self) -> bool:
        return self._end.is_set()

    def note_end(self, *, is_driver: bool = False) -> None:
        """Note that the browser has died, by itself or with its driver."""
        if not self.has_died:
            self.blames_page = self.now == 1 and not is_driver
        self.is_retired = True
        self._end.set()

    async def wait_for_its_end(self, seconds: float | None = None) -> None:
        """Wait until the browser has died, at most so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._end.wait()


class Chromium:
    """Starts browsers and assigns them to pages. `program`: the path of Chromium.

    - `started`: number of browsers started
    - `killed`: number of page processes killed for their memory"""

    def __init__(self, program: str, settings: Settings) -> None:
        self._program = program
        self._recycle = settings.render_recycle
        self._most_memory = settings.render_memory
        self._has_sandbox = settings.chromium_sandbox
        self._starting = asyncio.Lock()
        self._playwright: Playwright | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._current: RunningBrowser | None = None
        self._all: set[RunningBrowser] = set()
        self._watching: asyncio.Task[None] | None = None
        self._warming: asyncio.Task[None] | None = None
        self.started = self.killed = 0

    async def warm(self) -> None:
        """Start a browser before a page needs it, or the page would miss its start slot. An error is reported to the
        first page instead."""
        with contextlib.suppress(BrowserMissingError):
            async with self._starting:
                if self._current is None or self._current.is_retired:
                    self._current = await self._start()

    @asynccontextmanager
    async def lend(self, *, alone: bool = False) -> AsyncIterator[RunningBrowser]:
        """A browser for one page, shared or `alone`. The last page of a retired browser closes it."""
        async with self._starting:
            running = None if alone else self._current
            if running is None or running.is_retired:
                running = await self._start()
                if not alone:
                    self._current = running
            running.pages += 1
            running.now += 1
            running.is_retired = alone or running.is_retired or running.pages >= self._recycle
            if running.is_retired and not alone:
                self._warming = asyncio.create_task(self.warm())
        try:
            yield running
        finally:
            running.now -= 1
            if running.is_retired and not running.now:
                await self._end(running)

    def retire(self, running: RunningBrowser) -> None:
        """Assign no more pages to this browser: it failed to close one."""
        running.is_retired = True

    async def close(self) -> None:
        """Stop the browsers and Playwright's driver."""
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        if self._watching is not None:
            self._watching.cancel()
        for running in list(self._all):
            await self._end(running)
        await self._stop_driver()
        if self._folder is not None:
            self._folder.cleanup()

    async def _start(self) -> RunningBrowser:
        try:
            async with asyncio.timeout(START_SECONDS):
                try:
                    browser = await self._launch()
                except Exception:
                    # The driver may be dead: try a new one before blaming the browser.
                    await self._stop_driver()
                    browser = await self._launch()
        except Exception as error:
            await self._stop_driver()
            raise BrowserMissingError(_why(error)) from error
        running = RunningBrowser(browser)
        self._all.add(running)
        self.started += 1
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        return running

    async def _launch(self) -> Browser:
        if self._playwright is None:
            self._playwright = await self._drive()
        return await self._playwright.chromium.launch(
            executable_path=TIED,
            env={**os.environ, **self._tied("chromium", self._program, parent=0)},
            args=[*FLAGS],
            # Root cannot set up the sandbox.
            chromium_sandbox=self._has_sandbox and os.geteuid() != 0,
            # The worker handles signals itself; Playwright would exit at the first one.
            handle_sigint=False,
            handle_sigterm=False,
            handle_sighup=False,
        )

    async def _stop_driver(self) -> None:
        driver, self._playwright = self._playwright, None
        if driver is not None:
            with contextlib.suppress(Exception):  # it may be dead already
                async with asyncio.timeout(CLOSE_SECONDS):
                    await driver.stop()

    async def _drive(self) -> Playwright:
        """Start Playwright's driver, tied to this process: the browser dies with the driver."""
        if self._folder is None:
            remove_old_folders()
            self._folder = tempfile.TemporaryDirectory(prefix=f"{FOLDER}{os.getpid()}-", ignore_cleanup_errors=True)
        variables = {NODE_VARIABLE: TIED, **self._tied("node", _node(), parent=os.getpid())}
        before = {name: os.environ.get(name) for name in variables}
        # Playwright reads them when it starts its driver, in this call.
        os.environ.update(variables)
        try:
            return await async_playwright().start()
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def _has_driver(self) -> bool:
        if self._folder is None:
            return False
        with contextlib.suppress(OSError, ValueError):
            return is_running(int((Path(self._folder.name) / "node.pid").read_text()))
        return True  # it has not begun yet

    def _tied(self, name: str, program: str, *, parent: int) -> dict[str, str]:
        """The environment with which TIED runs a program so that it dies with its parent."""
        if self._folder is None:
            raise RuntimeError("the driver is started first")
        return {
            "TIED_FOLDER": self._folder.name,
            "TIED_NAME": name,
            "TIED_PYTHON": sys.executable,
            "TIED_SCRIPT": tied_process.__file__,
            "TIED_PARENT": str(parent),
            "TIED_PROGRAM": program,
        }

    async def _end(self, running: RunningBrowser) -> None:
        """Close a browser; one that does not close ends with its driver."""
        if running not in self._all:
            return
        self._all.discard(running)
        running.is_retired = True
        with contextlib.suppress(Exception):  # a browser that is dead already, or hangs
            async with asyncio.timeout(CLOSE_SECONDS):
                await running.browser.close()

    async def _watch(self) -> None:
        """Kill page processes that take too much memory: only their page fails. Also notice that the driver has died,
        and its browsers with it, as Playwright does not report it."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self._playwright is not None and not self._has_driver():
                self._playwright = None
                for running in self._all:
                    running.note_end(is_driver=True)
            for pid in await asyncio.to_thread(renderers_below, os.getpid()):
                if private_bytes(pid) > self._most_memory:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        self.killed += 1


def _why(error: Exception) -> str:
    """Why no browser could be started, in one line; Chromium's own words are in the later lines of the error."""
    text = str(error)
    if "usable sandbox" in text or "sandbox helper" in text:
        return (
            "Chromium cannot set up its sandbox here: allow user namespaces, or, where a container is the sandbox,"
            " set chromium_sandbox=false"
        )
    return one_line(text.partition("\n")[0] or type(error).__name__)[:200]


def remove_old_folders() -> None:
    """Remove the profile folders of killed workers."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*-*"):
        pid = folder.name.removeprefix(FOLDER).partition("-")[0]
        if pid.isdecimal() and not is_running(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _node() -> str:
    """The path of Node.js for Playwright's driver: from PLAYWRIGHT_NODEJS_PATH, else Playwright's own."""
    return os.environ.get(NODE_VARIABLE) or str(Path(playwright.__file__).parent / "driver" / "node")


def processes_below(pid: int) -> list[int]:
    """The descendants of a process."""
    children: dict[int, list[int]] = {}
    for process, parent in _parents():
        children.setdefault(parent, []).append(process)
    found: list[int] = []
    waiting = list(children.get(pid, ()))
    while waiting:
        process = waiting.pop()
        found.append(process)
        waiting += children.get(process, ())
    return found


def is_running(pid: int) -> bool:
    """Whether the process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # of another user
    return True


def renderers_below(pid: int) -> list[int]:
    """The descendants of a process in which pages run."""
    return [process for process in processes_below(pid) if RENDERER in _command(process)]


def private_bytes(pid: int) -> int:
    """The private memory of a process; 0: it has ended."""
    with contextlib.suppress(OSError, ValueError):
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def _parents() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(OSError):
        for entry in PROC.iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    # The name of a process, in brackets, may contain spaces and brackets.
                    yield int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])


def _command(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""
