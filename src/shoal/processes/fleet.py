"""Worker processes on one machine: started, watched, replaced when they die, stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from shoal.errors import ShoalError, StorageError

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
LONGEST_LINE = 1_000_000
LAST_OUTPUT_SECONDS = 1.0
# Exit codes of a worker that refused to work, with a line that says why: a new one would refuse as well.
FINAL_CODES = frozenset({1, 2})
# The exit code of a worker that could not reach a server. The server comes back: such a worker is always replaced.
SERVER_UNREACHABLE = 3
MOST_FAILURES = 3


class Start(NamedTuple):
    """How a worker is started: its command line by its name, and its environment."""

    command: Callable[[str], list[str]]
    environment: Mapping[str, str]


class Fleet:
    """Keeps one worker running under each of `names` until it is done or `stop` is set.

    `reclaim` is called with the name of a worker that died, before a new one starts under that name."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        start: Start,
        reclaim: Callable[[str], Awaitable[None]],
        say: Callable[[str], None],
        grace_seconds: float,
    ) -> None:
        self._names = names
        self._start = start
        self._reclaim = reclaim
        self._say = say
        self._grace = grace_seconds
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    @property
    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._processes.items() if process.returncode is None}

    async def run(self, stop: asyncio.Event) -> None:
        """Run to the end. Raises when a worker refuses to work at all."""
        keepers = [asyncio.create_task(self._keep(name, stop)) for name in self._names]
        stopping = asyncio.create_task(self._stop_on(stop))
        try:
            await asyncio.gather(*keepers)
        except asyncio.CancelledError:
            # `stop` lets workers finish their pages. A cancelled run does not wait for that.
            self._signal(signal.SIGKILL)
            raise
        finally:
            stopping.cancel()
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(stopping, *keepers, return_exceptions=True)
            await self._end_all()

    async def _keep(self, name: str, stop: asyncio.Event) -> None:
        pause, failures = FIRST_PAUSE_SECONDS, 0
        while not stop.is_set():
            # A session of its own: Ctrl-C reaches only the coordinator, which then asks each worker once.
            process = await asyncio.create_subprocess_exec(
                *self._start.command(name),
                env=self._start.environment,
                start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            self._processes[name] = process
            began = asyncio.get_running_loop().time()
            code = await self._exit_code(process)
            if code == 0 or stop.is_set():
                return
            await self._reclaim(name)
            if asyncio.get_running_loop().time() - began > LONGEST_PAUSE_SECONDS:
                pause, failures = FIRST_PAUSE_SECONDS, 0
            # A signal (below zero) comes from outside. A code is the worker's own: one that cannot start repeats it.
            failures += code > 0 and code != SERVER_UNREACHABLE
            if code in FINAL_CODES or failures >= MOST_FAILURES:
                raise _worker_refused(code if code in FINAL_CODES else 1)
            self._say(f"worker {name} ended with {_ending(code)}; its tasks go back, a new one starts")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stop.wait()
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _exit_code(self, process: asyncio.subprocess.Process) -> int:
        passing = asyncio.create_task(self._pass_on(process))
        try:
            code = await process.wait()
            # Not until the pipe closes: a process that the worker started may keep it open.
            await asyncio.wait([passing], timeout=LAST_OUTPUT_SECONDS)
            return code
        finally:
            passing.cancel()

    async def _pass_on(self, process: asyncio.subprocess.Process) -> None:
        """Say every line that the worker writes. Written straight to the terminal it would damage the live display."""
        rest, output = b"", process.stdout
        while output is not None and (chunk := await output.read(65_536)):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._say(line.decode(errors="replace"))
            if len(rest) > LONGEST_LINE:
                self._say(rest.decode(errors="replace"))
                rest = b""
        if rest:
            self._say(rest.decode(errors="replace"))

    async def _stop_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._signal(signal.SIGTERM)
        # Workers end within the grace period; one that hangs is killed.
        await asyncio.sleep(self._grace + 10)
        self._signal(signal.SIGKILL)

    async def _end_all(self) -> None:
        self._signal(signal.SIGTERM)
        running = [process.wait() for process in self._processes.values() if process.returncode is None]
        if not running:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace + 5):
                await asyncio.gather(*running)
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)


def _worker_refused(code: int) -> ShoalError:
    error = StorageError("a worker could not go on; its line above says why")
    error.exit_code = code
    return error


def _ending(code: int) -> str:
    if code >= 0:
        return f"code {code}"
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
