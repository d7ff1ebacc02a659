"""Worker processes on one machine: started, watched, started again when they die, stopped together."""

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
LAST_WORDS_SECONDS = 1.0
# A worker that says so itself will say so again: starting it anew would only repeat the line.
FINAL_CODES = frozenset({1, 2})
# A server that is away comes back: whoever starts meanwhile is started again.
SERVER_AWAY = 3
MOST_BREAKS = 3


class Start(NamedTuple):
    """How a worker of some name is started."""

    command: Callable[[str], list[str]]
    environment: Mapping[str, str]


class Fleet:
    """Keeps `names` workers running until each ends by itself or `stop` is set."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        start: Start,
        gone: Callable[[str], Awaitable[None]],
        say: Callable[[str], None],
        grace_seconds: float,
    ) -> None:
        self._names = names
        self._start = start
        self._gone = gone
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
            # Asked once they finish their pages; whoever does not wait for that means at once.
            self._signal(signal.SIGKILL)
            raise
        finally:
            stopping.cancel()
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(stopping, *keepers, return_exceptions=True)
            await self._end_all()

    async def _keep(self, name: str, stop: asyncio.Event) -> None:
        pause, breaks = FIRST_PAUSE_SECONDS, 0
        while not stop.is_set():
            # A session of its own: Ctrl-C reaches the coordinator alone, which then asks each worker once.
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
            code = await self._end_of(process)
            if code == 0 or stop.is_set():
                return
            await self._gone(name)
            if asyncio.get_running_loop().time() - began > LONGEST_PAUSE_SECONDS:
                pause, breaks = FIRST_PAUSE_SECONDS, 0
            # A signal comes from outside; a code is the worker's own, given again and again by one that cannot start.
            breaks += code > 0 and code != SERVER_AWAY
            if code in FINAL_CODES or breaks >= MOST_BREAKS:
                raise _worker_refused(code if code in FINAL_CODES else 1)
            self._say(f"worker {name} ended with {_ending(code)}; its tasks go back, a new one starts")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stop.wait()
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _end_of(self, process: asyncio.subprocess.Process) -> int:
        passing = asyncio.create_task(self._pass_on(process))
        try:
            code = await process.wait()
            # A process that the worker started itself may hold the pipe open.
            await asyncio.wait([passing], timeout=LAST_WORDS_SECONDS)
            return code
        finally:
            passing.cancel()

    async def _pass_on(self, process: asyncio.subprocess.Process) -> None:
        """Say what a worker writes, until it ends: written past the coordinator it would spoil the display."""
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
        # Workers end by themselves within the grace period; this is for one that hangs.
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
