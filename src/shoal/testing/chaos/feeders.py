"""Two feeders of one crawl: one slow, one killed in the middle and begun again. No link leads to what they feed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from shoal.frontier.base import Frontier
from shoal.model import Crawl, Progress
from shoal.testing.chaos.diary import Diary, Say, until
from shoal.testing.chaos.plan import Deed
from shoal.testing.chaos.reserve import Reserve

SLOW_STEPS = 10
SLOW_STEP_SECONDS = 0.4
AWAY_SECONDS = 1.0
# A feeder ends within this time of its last URL, also when the frontier is away meanwhile.
END_SECONDS = 60.0


class Feeder:
    """One feeder process: takes URLs until it is told that there are no more."""

    def __init__(self, process: asyncio.subprocess.Process, say: Say) -> None:
        self._process = process
        self._listening = asyncio.create_task(self._pass_on(say))

    @classmethod
    async def start(cls, crawl: Crawl, environment: Mapping[str, str], *, say: Say) -> Feeder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal.testing.chaos.feeder_process", crawl.id),
            env={**os.environ, **environment},
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        return cls(process, say)

    async def give(self, urls: Sequence[str]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{url}\n" for url in urls).encode())
        await self._process.stdin.drain()

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._listening

    async def end(self) -> list[str]:
        """Tell it that this was all, and wait until it has fed it; gives a line if it fails."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(END_SECONDS):
                code = await self._process.wait()
        except TimeoutError:
            await self.kill()
            return [f"a feeder did not end within {END_SECONDS:g} s of its last URL"]
        await self._listening
        return [f"a feeder ended with code {code}"] if code else []

    async def _pass_on(self, say: Say) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            say(line.decode(errors="replace").rstrip("\n"))


class Feeders:
    """Feeds two parts at the same time. The slow one keeps its last URLs until the crawl has nothing else left to do,
    not even its reserve; the other one is ended by `kill_one` and then begun again."""

    def __init__(
        self,
        crawl: Crawl,
        *,
        frontier: Frontier,
        environment: Mapping[str, str],
        reserve: Reserve,
        diary: Diary,
        say: Say,
    ) -> None:
        self._crawl = crawl
        self._frontier = frontier
        self._reserve = reserve
        self._diary = diary
        self._start = partial(Feeder.start, crawl, environment, say=say)
        self._killed = asyncio.Event()
        self._again = asyncio.Event()

    async def run(self, slow: Sequence[str], other: Sequence[str]) -> None:
        """Feed both parts to their ends."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._feed_slowly(slow))
            group.create_task(self._feed_twice(other))

    async def kill_one(self) -> None:
        """Kill the feeder that is not slow, in the middle of its part; another begins that part again."""
        self._diary.doing = "a feeder is killed and begun again; another one still feeds"
        self._killed.set()
        await asyncio.sleep(AWAY_SECONDS)
        self._again.set()
        self._diary.done[Deed.FEED] += 1

    async def _feed_slowly(self, urls: Sequence[str]) -> None:
        feeder = await self._start()
        try:
            early, late = urls[: 3 * len(urls) // 4], urls[3 * len(urls) // 4 :]
            step = max(1, -(-len(early) // SLOW_STEPS))
            for first in range(0, len(early), step):
                await feeder.give(early[first : first + step])
                await asyncio.sleep(SLOW_STEP_SECONDS)
            await self._reserve.is_empty.wait()
            await until(partial(self._frontier.progress, self._crawl.id), self._has_run_dry)
            await feeder.give(late)
            self._diary.surprises += await feeder.end()
        finally:
            await feeder.kill()

    async def _feed_twice(self, urls: Sequence[str]) -> None:
        feeder = await self._start()
        try:
            await feeder.give(urls[: len(urls) // 2])
            await self._killed.wait()
        finally:
            await feeder.kill()
        await self._again.wait()
        feeder = await self._start()
        try:
            await feeder.give(urls)
            self._diary.surprises += await feeder.end()
        finally:
            await feeder.kill()

    def _has_run_dry(self, progress: Progress) -> bool:
        return progress.left == 0
