"""Starts worker processes on one machine, watches them, replaces those that die, stops them together."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from shoal.errors import ShoalError, StorageError
from shoal.worker.black_box import BlackBox
from shoal.worker.deaths import LONGEST_PAUSE_SECONDS, Death, HangDetector, RestartBackoff, death_of
from shoal.worker.machine import is_stopped

LOOK_SECONDS = 0.5
LONGEST_LINE = 1_000_000
LAST_OUTPUT_SECONDS = 1.0
# Return codes of a worker that refused to work, and has said why: a new one would refuse as well.
FINAL_CODES = frozenset({1, 2})
# The return code of a worker that could not reach a server: it is always replaced.
SERVER_UNREACHABLE = 3
MOST_FAILURES = 3


class Fleet:
    """Keeps one worker running under each of `names` until it is done or `stop` is set. A worker that retires is
    replaced at once; one that is silent for longer than a handler may take is killed.

    `command` gives the command line of a worker by its name and the descriptor of its black box. `reclaim` is called
    with the name and the death of a worker before a new one takes its place as "NAME.2", then "NAME.3": with the same
    name nobody would see that a worker was lost."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        command: Callable[[str, int], list[str]],
        environment: Mapping[str, str],
        reclaim: Callable[[str, Death], Awaitable[None]],
        say: Callable[[str], None],
        grace_seconds: float,
    ) -> None:
        self._names = names
        self._command = command
        self._environment = environment
        self._reclaim = reclaim
        self._say = say
        self._grace = grace_seconds
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    @property
    def pids(self) -> dict[str, int]:
        """The running processes, by the name of the first worker in their place."""
        return {name: process.pid for name, process in self._processes.items() if process.returncode is None}

    async def run(self, stop: asyncio.Event) -> None:
        """Run to the end. Raises if a worker refuses to work at all."""
        keepers = [asyncio.create_task(self._keep(name, stop)) for name in self._names]
        stopping = asyncio.create_task(self._stop_on(stop))
        try:
            await asyncio.gather(*keepers)
        except asyncio.CancelledError:
            # Unlike `stop`, this does not let workers finish their pages.
            self._signal(signal.SIGKILL)
            raise
        finally:
            stopping.cancel()
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(stopping, *keepers, return_exceptions=True)
            await self._end_all()

    async def _keep(self, name: str, stop: asyncio.Event) -> None:
        backoff, failures, place = RestartBackoff(), 0, name
        for life in itertools.count(1):
            if stop.is_set():
                return
            began = asyncio.get_running_loop().time()
            name = place if life == 1 else f"{place}.{life}"
            code, death, retired = await self._live(name, place)
            if stop.is_set() or (code == 0 and death is None and not retired):
                return
            if code == 0 and death is None:
                self._say(f"worker {name} retired {retired}; a new one takes its place")
                continue
            await self._reclaim(name, death or Death(f"code {code}", (name,)))
            lived = asyncio.get_running_loop().time() - began
            if death is None:
                # The worker ended by itself with an error; a new one may end the same way.
                failures = 0 if lived > LONGEST_PAUSE_SECONDS else failures
                failures += code != SERVER_UNREACHABLE
                if code in FINAL_CODES or failures >= MOST_FAILURES:
                    raise _worker_refused(code if code in FINAL_CODES else 1)
                death = Death(f"code {code}", (name,))
            pause = backoff.after(death, lived=lived)
            if pause is None and code != SERVER_UNREACHABLE:
                raise _no_more_workers(death)
            self._say(f"worker {name} {death.sentence}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_PAUSE_SECONDS if pause is None else pause):
                    await stop.wait()

    async def _live(self, name: str, place: str) -> tuple[int, Death | None, str]:
        """Run one process to its end. Returns its return code, its death if it died, and why it retired if it did."""
        box = BlackBox.to_pass_on()
        try:
            # A session of its own: Ctrl-C reaches only the coordinator, which then signals each worker once.
            process = await asyncio.create_subprocess_exec(
                *self._command(name, box.descriptor),
                env=self._environment,
                pass_fds=(box.descriptor,),
                start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            self._processes[place] = process
            causes: list[str] = []
            watching = asyncio.create_task(self._watch(name, process, box, causes))
            try:
                code = await self._exit_code(process)
            finally:
                watching.cancel()
            reading = box.read()
            return code, death_of(code, reading, cause="".join(causes)), reading.retired
        finally:
            box.close()

    async def _watch(self, name: str, process: asyncio.subprocess.Process, box: BlackBox, causes: list[str]) -> None:
        """Kill a worker that hangs, and add the cause to `causes`."""
        detector, clock = HangDetector(f"worker {name}", say=self._say), asyncio.get_running_loop().time
        before = clock()
        while not causes:
            await asyncio.sleep(LOOK_SECONDS)
            now = clock()
            cause = detector.check(box.read(), elapsed=now - before, is_stopped=partial(is_stopped, process.pid))
            before = now
            if cause and process.returncode is None:
                causes.append(cause)
                process.kill()

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
        """Pass on every line that the worker writes: direct output would damage the live display."""
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
    error.return_code = code
    return error


def _no_more_workers(death: Death) -> ShoalError:
    return StorageError(
        f"worker after worker ended with {death.cause} before a page was settled: no new one starts{death.pages}"
    )
